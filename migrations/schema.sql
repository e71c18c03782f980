CREATE SCHEMA quotad;

CREATE DOMAIN quotad.counter AS bigint
	CONSTRAINT counter_not_negative CHECK ((VALUE >= 0));

CREATE DOMAIN quotad.day_of_month AS smallint
	CONSTRAINT day_of_month_range CHECK (((VALUE >= 1) AND (VALUE <= 31)));

CREATE DOMAIN quotad.entry_kind AS text COLLATE pg_catalog."C"
	CONSTRAINT entry_kind_known CHECK ((VALUE = ANY (ARRAY['consume'::text, 'hold'::text, 'extend'::text, 'settle'::text, 'release'::text, 'expire'::text, 'reverse'::text, 'adjust'::text, 'grant'::text])));

CREATE DOMAIN quotad.level_object AS json
	CONSTRAINT level_object_type CHECK ((json_typeof(VALUE) = 'object'::text));

COMMENT ON DOMAIN quotad.level_object IS 'What the levels of limits are kept in; see meter_total.levels.';

CREATE DOMAIN quotad.open_holds AS integer
	CONSTRAINT open_holds_range CHECK (((VALUE >= 0) AND (VALUE <= 1000)));

CREATE DOMAIN quotad.running_total AS bigint
	CONSTRAINT running_total_range CHECK (((VALUE >= 0) AND (VALUE <= '999999999999999'::bigint)));

COMMENT ON DOMAIN quotad.running_total IS 'Units since a tenant''s first entry.';

CREATE DOMAIN quotad.sha256 AS bytea
	CONSTRAINT sha256_length CHECK ((octet_length(VALUE) = 32));

CREATE DOMAIN quotad.tenant_name AS text COLLATE pg_catalog."C"
	CONSTRAINT tenant_name_length CHECK (((octet_length(VALUE) >= 1) AND (octet_length(VALUE) <= 256)));

CREATE DOMAIN quotad.tenant_status AS text
	CONSTRAINT tenant_status_known CHECK ((VALUE = ANY (ARRAY['active'::text, 'suspended'::text, 'closed'::text])));

CREATE DOMAIN quotad.usage_change AS bigint
	CONSTRAINT usage_change_range CHECK (((VALUE >= '-999999999999999'::bigint) AND (VALUE <= '999999999999999'::bigint)));

COMMENT ON DOMAIN quotad.usage_change IS 'Units, or units set aside, that an entry adds; below 0 for what it takes off.';

CREATE FUNCTION quotad.decision_clock() RETURNS timestamp with time zone
    LANGUAGE sql PARALLEL SAFE
    RETURN clock_timestamp();

COMMENT ON FUNCTION quotad.decision_clock() IS 'The instant a decision is made at; every decision reads time from here and nowhere else.';

CREATE FUNCTION quotad.ensure_partitions(from_at timestamp with time zone, until_at timestamp with time zone) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog'
    SET "TimeZone" TO 'UTC'
    SET lock_timeout TO '5s'
    AS $$
declare
  parent  record;
  lower_at timestamptz;
  upper_at timestamptz;
  child   text;
  made    integer := 0;
begin
  if until_at < from_at or until_at > from_at + interval '2 years' then
    raise exception 'from_at and until_at must be in order and at most 2 years apart'
      using errcode = 'invalid_parameter_value';
  end if;
  perform pg_advisory_xact_lock(hashtextextended('quotad.ensure_partitions', 0));
  for parent in
    select * from (values ('entry', 'month'), ('entry_dims', 'month'), ('idempotency', 'week')) as p(name, step)
  loop
    lower_at := date_trunc(parent.step, from_at);
    while lower_at <= until_at loop
      upper_at := lower_at + ('1 ' || parent.step)::interval;
      child := parent.name || to_char(lower_at, '_YYYYMMDD');
      if to_regclass(format('quotad.%I', child)) is null then
        execute format('create table quotad.%I (like quotad.%I including defaults including constraints)',
          child, parent.name);
        execute format('alter table quotad.%I attach partition quotad.%I for values from (%L) to (%L)',
          parent.name, child, lower_at, upper_at);
        if parent.name = 'entry' then
          execute format('create trigger append_only_truncate before truncate on quotad.%I
            for each statement execute function quotad.refuse_change()', child);
        end if;
        made := made + 1;
      end if;
      lower_at := upper_at;
    end loop;
  end loop;
  return made;
end;
$$;

COMMENT ON FUNCTION quotad.ensure_partitions(from_at timestamp with time zone, until_at timestamp with time zone) IS 'Makes the partitions that cover from_at to until_at, at most 2 years; returns how many were new.';

CREATE FUNCTION quotad.refuse_change() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
    AS $$
begin
  raise exception '%.% is append-only: % refused', tg_table_schema, tg_table_name, tg_op
    using errcode = 'insufficient_privilege';
end;
$$;

CREATE TABLE quotad.account (
    tenant_id bigint NOT NULL,
    tenant quotad.tenant_name NOT NULL,
    plan text NOT NULL COLLATE pg_catalog."C",
    status quotad.tenant_status DEFAULT 'active'::text NOT NULL,
    timezone text DEFAULT 'UTC'::text NOT NULL,
    billing_anchor quotad.day_of_month DEFAULT 1 NOT NULL,
    calendar_past jsonb,
    seq quotad.counter DEFAULT 0 NOT NULL,
    last_at timestamp with time zone DEFAULT '1970-01-01 00:00:00+00'::timestamp with time zone NOT NULL,
    head_hash quotad.sha256 NOT NULL,
    subject_seq quotad.counter DEFAULT 0 NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    open_holds quotad.open_holds DEFAULT 0 NOT NULL,
    next_plan text COLLATE pg_catalog."C",
    next_plan_at timestamp with time zone,
    override_set_id bigint DEFAULT 0 NOT NULL,
    terms_at timestamp with time zone DEFAULT '1970-01-01 00:00:00+00'::timestamp with time zone NOT NULL,
    room text DEFAULT repeat(' '::text, 160),
    CONSTRAINT account_next_plan CHECK (((next_plan IS NULL) = (next_plan_at IS NULL)))
)
WITH (fillfactor='90');

COMMENT ON TABLE quotad.account IS 'One row per tenant. Whoever changes anything of a tenant locks its row first.';

COMMENT ON COLUMN quotad.account.plan IS 'In force until next_plan_at, if there is one.';

COMMENT ON COLUMN quotad.account.calendar_past IS 'Earlier calendars, [{"until": rfc3339, "timezone": name, "billing_anchor": day}], oldest first; null when never changed.';

COMMENT ON COLUMN quotad.account.open_holds IS 'How many of the tenant''s holds are open: 0 saves looking for them.';

COMMENT ON COLUMN quotad.account.override_set_id IS 'The overrides in force; 0 for none.';

COMMENT ON COLUMN quotad.account.terms_at IS 'When plan, next_plan or override_set_id were last changed, in the tenant''s own time.';

COMMENT ON COLUMN quotad.account.room IS 'As long as the row, until its first entry: room in the page for its next version. Means nothing.';

ALTER TABLE quotad.account ALTER COLUMN tenant_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME quotad.account_tenant_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE quotad.api_key (
    key_id text NOT NULL COLLATE pg_catalog."C",
    env text NOT NULL,
    secret_hash bytea NOT NULL,
    scopes text[] NOT NULL,
    tenant text COLLATE pg_catalog."C",
    name text DEFAULT ''::text NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    created_by text NOT NULL,
    revoked_at timestamp with time zone,
    revoked_by text,
    CONSTRAINT api_key_scopes CHECK (((cardinality(scopes) > 0) AND (scopes <@ ARRAY['decide'::text, 'read'::text, 'audit'::text, 'admin'::text]))),
    CONSTRAINT api_key_secret_is_sha256 CHECK ((octet_length(secret_hash) = 32))
);

COMMENT ON COLUMN quotad.api_key.tenant IS 'The one tenant this key may act for; null means every tenant.';

CREATE TABLE quotad.catalog_version (
    single boolean DEFAULT true NOT NULL,
    version bigint NOT NULL,
    CONSTRAINT catalog_version_not_negative CHECK ((version >= 0)),
    CONSTRAINT catalog_version_single CHECK (single)
);

CREATE TABLE quotad.config_change (
    change_id bigint NOT NULL,
    changed_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    changed_by text NOT NULL,
    object text NOT NULL,
    name text NOT NULL,
    before jsonb,
    after jsonb,
    CONSTRAINT config_change_object CHECK ((object = ANY (ARRAY['meter'::text, 'plan'::text, 'tenant'::text, 'key'::text, 'settings'::text])))
);

COMMENT ON TABLE quotad.config_change IS 'Who changed what, from what, to what. Append-only.';

ALTER TABLE quotad.config_change ALTER COLUMN change_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME quotad.config_change_change_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE quotad.denial (
    tenant_id bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    request_id uuid NOT NULL,
    after_seq bigint NOT NULL,
    plan_version_id bigint NOT NULL,
    reason text NOT NULL COLLATE pg_catalog."C",
    subject text COLLATE pg_catalog."C",
    limit_names text[] NOT NULL,
    meters text[] NOT NULL,
    decision json NOT NULL,
    override_set_id bigint DEFAULT 0 NOT NULL,
    CONSTRAINT denial_after_seq CHECK ((after_seq >= 0))
);

COMMENT ON COLUMN quotad.denial.after_seq IS 'The tenant''s newest entry when it was decided; 0 for none.';

COMMENT ON COLUMN quotad.denial.limit_names IS 'The limits that denied; empty where the reason is none of a limit.';

COMMENT ON COLUMN quotad.denial.decision IS 'The answer as it was sent, without the subject.';

CREATE TABLE quotad.denial_count (
    tenant_id bigint NOT NULL,
    minute timestamp with time zone NOT NULL,
    limit_name text NOT NULL COLLATE pg_catalog."C",
    reason text NOT NULL COLLATE pg_catalog."C",
    denials bigint NOT NULL,
    CONSTRAINT denial_count_positive CHECK ((denials > 0))
)
WITH (fillfactor='50');

COMMENT ON TABLE quotad.denial_count IS 'Denied requests per minute. limit_name '''' counts each request once; a name counts those which that limit denied.';

CREATE TABLE quotad.entry (
    tenant_id bigint NOT NULL,
    seq bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    effective_at timestamp with time zone NOT NULL,
    kind quotad.entry_kind NOT NULL,
    meter_id integer NOT NULL,
    subject_id bigint NOT NULL,
    units quotad.usage_change NOT NULL,
    held quotad.usage_change NOT NULL,
    total quotad.running_total NOT NULL,
    subject_total quotad.running_total NOT NULL,
    request_id uuid NOT NULL,
    batch_id uuid NOT NULL,
    ref_seq bigint NOT NULL,
    plan_version_id bigint NOT NULL,
    limits_used bigint[] NOT NULL,
    dims_digest bytea,
    hash quotad.sha256 NOT NULL,
    limits_held bigint[],
    override_set_id bigint DEFAULT 0 NOT NULL,
    CONSTRAINT entry_seq CHECK (((0 <= ref_seq) AND (ref_seq < seq)))
)
PARTITION BY RANGE (at);

COMMENT ON TABLE quotad.entry IS 'One row per change of a tenant''s usage; numbered 1, 2, 3 … per tenant without gaps.';

COMMENT ON COLUMN quotad.entry.effective_at IS 'The instant the units count from; of a hold and its extension, when it ends if nothing resolves it.';

COMMENT ON COLUMN quotad.entry.total IS 'Units of this tenant and meter up to and including this entry.';

COMMENT ON COLUMN quotad.entry.subject_total IS 'The same of this subject alone; 0 without a subject.';

COMMENT ON COLUMN quotad.entry.ref_seq IS 'The entry this one answers; 0 for none.';

COMMENT ON COLUMN quotad.entry.limits_used IS 'What each limit of the plan version on this meter had used just before, in the plan''s order.';

COMMENT ON COLUMN quotad.entry.limits_held IS 'What was set aside of each limit, in the order of limits_used; null where nothing was.';

CREATE TABLE quotad.entry_dims (
    tenant_id bigint NOT NULL,
    seq bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    salt bytea NOT NULL,
    dims json NOT NULL
)
PARTITION BY RANGE (at);

COMMENT ON TABLE quotad.entry_dims IS 'The text behind entry.dims_digest = SHA-256(salt, dims), kept apart so that it can be erased.';

CREATE TABLE quotad.hold (
    tenant_id bigint NOT NULL,
    hold_id uuid NOT NULL,
    subject_id bigint NOT NULL,
    state text NOT NULL COLLATE pg_catalog."C",
    meter_ids integer[] NOT NULL,
    units bigint[] NOT NULL,
    first_seq bigint NOT NULL,
    started_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    resolved_at timestamp with time zone,
    expired_seq bigint,
    charged bigint[],
    resolution_hash bytea,
    answer bytea,
    CONSTRAINT hold_charged CHECK (((charged IS NULL) OR (cardinality(charged) = cardinality(meter_ids)))),
    CONSTRAINT hold_expired CHECK ((((expired_seq IS NULL) = (charged IS NULL)) AND ((state <> 'expired'::text) OR (charged IS NOT NULL)))),
    CONSTRAINT hold_first_seq CHECK ((first_seq > 0)),
    CONSTRAINT hold_hash_is_sha256 CHECK ((octet_length(resolution_hash) = 32)),
    CONSTRAINT hold_lasts CHECK ((expires_at > started_at)),
    CONSTRAINT hold_meters CHECK ((((cardinality(meter_ids) >= 1) AND (cardinality(meter_ids) <= 16)) AND (cardinality(units) = cardinality(meter_ids)))),
    CONSTRAINT hold_resolution CHECK ((((resolution_hash IS NULL) = (answer IS NULL)) AND ((answer IS NOT NULL) = (state = ANY (ARRAY['settled'::text, 'released'::text]))))),
    CONSTRAINT hold_resolved CHECK (((state = 'open'::text) = (resolved_at IS NULL))),
    CONSTRAINT hold_state CHECK ((state = ANY (ARRAY['open'::text, 'settled'::text, 'released'::text, 'expired'::text])))
)
WITH (fillfactor='70');

COMMENT ON TABLE quotad.hold IS 'One row per hold. units[i] of meter_ids[i] are set aside while it is open; its entries begin at first_seq.';

COMMENT ON COLUMN quotad.hold.expired_seq IS 'The first entry of its expiry; null if it did not expire.';

COMMENT ON COLUMN quotad.hold.charged IS 'What its expiry took, by meter, where the meter says so; null if it did not expire.';

COMMENT ON COLUMN quotad.hold.resolution_hash IS 'What settle or release it was, so that repeating it gives the same answer again.';

CREATE TABLE quotad.idempotency (
    tenant_id bigint NOT NULL,
    key text NOT NULL COLLATE pg_catalog."C",
    created_at timestamp with time zone NOT NULL,
    request_hash bytea NOT NULL,
    first_seq bigint NOT NULL,
    answer bytea NOT NULL,
    CONSTRAINT idempotency_hash_is_sha256 CHECK ((octet_length(request_hash) = 32)),
    CONSTRAINT idempotency_key_length CHECK (((octet_length(key) >= 1) AND (octet_length(key) <= 255)))
)
PARTITION BY RANGE (created_at);

CREATE TABLE quotad.meter (
    meter_id integer NOT NULL,
    meter text NOT NULL COLLATE pg_catalog."C",
    unit text NOT NULL,
    weights jsonb DEFAULT '{}'::jsonb NOT NULL,
    removed boolean DEFAULT false NOT NULL,
    catalog_version bigint NOT NULL,
    on_expiry text DEFAULT 'release'::text NOT NULL,
    CONSTRAINT meter_name CHECK ((meter ~ '^[a-z0-9][a-z0-9._-]{0,63}$'::text)),
    CONSTRAINT meter_on_expiry CHECK ((on_expiry = ANY (ARRAY['release'::text, 'charge'::text]))),
    CONSTRAINT meter_unit CHECK (((octet_length(unit) >= 1) AND (octet_length(unit) <= 64))),
    CONSTRAINT meter_weights CHECK ((jsonb_typeof(weights) = 'object'::text))
);

COMMENT ON COLUMN quotad.meter.weights IS 'Pool name to weight, a decimal string with at most 6 decimals; {} means the meter has no pools.';

COMMENT ON COLUMN quotad.meter.on_expiry IS 'What becomes of a hold that expires: nothing, or the charge of all of it.';

ALTER TABLE quotad.meter ALTER COLUMN meter_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME quotad.meter_meter_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE quotad.meter_total (
    tenant_id bigint NOT NULL,
    meter_id integer NOT NULL,
    subject_id bigint DEFAULT 0 NOT NULL,
    units quotad.running_total DEFAULT 0 NOT NULL,
    held quotad.running_total DEFAULT 0 NOT NULL,
    calls quotad.counter DEFAULT 0 NOT NULL,
    last_at timestamp with time zone NOT NULL,
    returned quotad.running_total DEFAULT 0 NOT NULL,
    levels quotad.level_object,
    room text DEFAULT repeat(' '::text, 160),
    CONSTRAINT meter_total_returned CHECK (((returned)::bigint <= (units)::bigint))
)
WITH (fillfactor='90');

COMMENT ON TABLE quotad.meter_total IS 'The newest running total of a meter; subject 0 is the whole tenant. last_at is the last entry that used units.';

COMMENT ON COLUMN quotad.meter_total.returned IS 'Units given back by corrections, which are in no running total.';

COMMENT ON COLUMN quotad.meter_total.levels IS 'The levels of token buckets, GCRA and leaky buckets on the meter: those per tenant at subject 0, those per subject at the subject. {limit: [plan_version_id, override_set_id, units, remainder, denominator, at in microseconds]}: units + remainder/denominator at an instant, and the plan version and the overrides (0 for none) that it was written under. Limits that the plan does not have now stay. Null for none.';

COMMENT ON COLUMN quotad.meter_total.room IS 'As long as the row, until its first update: room in the page for its next version. Means nothing.';

CREATE TABLE quotad.override_set (
    override_set_id bigint NOT NULL,
    tenant_id bigint NOT NULL,
    overrides jsonb NOT NULL,
    created_at timestamp with time zone NOT NULL,
    created_by text NOT NULL,
    CONSTRAINT override_set_overrides CHECK ((jsonb_typeof(overrides) = 'array'::text))
);

COMMENT ON TABLE quotad.override_set IS 'Every set of overrides that a tenant ever had. Entries name the set they were decided under, so rows never change.';

ALTER TABLE quotad.override_set ALTER COLUMN override_set_id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME quotad.override_set_override_set_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE quotad.plan (
    plan text NOT NULL COLLATE pg_catalog."C",
    plan_version_id bigint NOT NULL,
    removed boolean DEFAULT false NOT NULL,
    catalog_version bigint NOT NULL
);

COMMENT ON TABLE quotad.plan IS 'The current version of each plan.';

CREATE TABLE quotad.plan_version (
    plan_version_id bigint NOT NULL,
    plan text NOT NULL COLLATE pg_catalog."C",
    version integer NOT NULL,
    spec jsonb NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    created_by text NOT NULL,
    CONSTRAINT plan_version_name CHECK ((plan ~ '^[a-z0-9][a-z0-9._-]{0,63}$'::text)),
    CONSTRAINT plan_version_positive CHECK ((version > 0))
);

COMMENT ON TABLE quotad.plan_version IS 'Every version a plan ever had. Entries name the version they were decided under, so rows never change.';

ALTER TABLE quotad.plan_version ALTER COLUMN plan_version_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME quotad.plan_version_plan_version_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE quotad.setting (
    single boolean DEFAULT true NOT NULL,
    default_plan text COLLATE pg_catalog."C",
    default_plan_rate integer DEFAULT 600 NOT NULL,
    catalog_version bigint DEFAULT 0 NOT NULL,
    CONSTRAINT setting_default_plan_rate CHECK (((default_plan_rate >= 0) AND (default_plan_rate <= 60000))),
    CONSTRAINT setting_single CHECK (single)
);

COMMENT ON COLUMN quotad.setting.default_plan IS 'What an unknown tenant gets with its first consume; null: nothing, it stays unknown.';

COMMENT ON COLUMN quotad.setting.default_plan_rate IS 'How many tenants the default plan may make a minute.';

CREATE TABLE quotad.subject (
    tenant_id bigint NOT NULL,
    subject_id bigint NOT NULL,
    subject text COLLATE pg_catalog."C",
    salt bytea,
    digest bytea NOT NULL,
    CONSTRAINT subject_digest_is_sha256 CHECK ((octet_length(digest) = 32)),
    CONSTRAINT subject_erased_together CHECK (((subject IS NULL) = (salt IS NULL))),
    CONSTRAINT subject_id_positive CHECK ((subject_id > 0)),
    CONSTRAINT subject_length CHECK (((octet_length(subject) >= 1) AND (octet_length(subject) <= 256)))
);

COMMENT ON TABLE quotad.subject IS 'A subject''s text and salt. The chain covers only the digest, so erasing the text breaks nothing.';

CREATE TABLE quotad.tenant_creation (
    single boolean DEFAULT true NOT NULL,
    minute timestamp with time zone DEFAULT '1970-01-01 00:00:00+00'::timestamp with time zone NOT NULL,
    made integer DEFAULT 0 NOT NULL,
    CONSTRAINT tenant_creation_made CHECK ((made >= 0)),
    CONSTRAINT tenant_creation_single CHECK (single)
)
WITH (fillfactor='10');

COMMENT ON TABLE quotad.tenant_creation IS 'How many tenants the default plan has made in a minute, the newest one alone.';

CREATE TABLE quotad.terms (
    terms_id bigint NOT NULL,
    tenant_id bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    plan text NOT NULL COLLATE pg_catalog."C",
    next_plan text COLLATE pg_catalog."C",
    next_plan_at timestamp with time zone,
    override_set_id bigint NOT NULL,
    CONSTRAINT terms_next_plan CHECK (((next_plan IS NULL) = (next_plan_at IS NULL)))
);

COMMENT ON TABLE quotad.terms IS 'Every change of a tenant''s plan, next plan or overrides. Append-only.';

ALTER TABLE quotad.terms ALTER COLUMN terms_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME quotad.terms_terms_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

ALTER TABLE ONLY quotad.account
    ADD CONSTRAINT account_pkey PRIMARY KEY (tenant_id);

ALTER TABLE ONLY quotad.account
    ADD CONSTRAINT account_tenant_unique UNIQUE (tenant);

ALTER TABLE ONLY quotad.api_key
    ADD CONSTRAINT api_key_pkey PRIMARY KEY (key_id);

ALTER TABLE ONLY quotad.catalog_version
    ADD CONSTRAINT catalog_version_pkey PRIMARY KEY (single);

ALTER TABLE ONLY quotad.config_change
    ADD CONSTRAINT config_change_pkey PRIMARY KEY (change_id);

ALTER TABLE ONLY quotad.denial_count
    ADD CONSTRAINT denial_count_pkey PRIMARY KEY (tenant_id, minute, limit_name, reason);

ALTER TABLE ONLY quotad.denial
    ADD CONSTRAINT denial_pkey PRIMARY KEY (tenant_id, at, request_id);

ALTER TABLE ONLY quotad.entry_dims
    ADD CONSTRAINT entry_dims_pkey PRIMARY KEY (tenant_id, seq, at);

ALTER TABLE ONLY quotad.entry
    ADD CONSTRAINT entry_pkey PRIMARY KEY (tenant_id, seq, at);

ALTER TABLE ONLY quotad.hold
    ADD CONSTRAINT hold_pkey PRIMARY KEY (tenant_id, hold_id);

ALTER TABLE ONLY quotad.idempotency
    ADD CONSTRAINT idempotency_pkey PRIMARY KEY (tenant_id, key, created_at);

ALTER TABLE ONLY quotad.meter
    ADD CONSTRAINT meter_pkey PRIMARY KEY (meter_id);

ALTER TABLE ONLY quotad.meter_total
    ADD CONSTRAINT meter_total_pkey PRIMARY KEY (tenant_id, meter_id, subject_id);

ALTER TABLE ONLY quotad.meter
    ADD CONSTRAINT meter_unique UNIQUE (meter);

ALTER TABLE ONLY quotad.override_set
    ADD CONSTRAINT override_set_pkey PRIMARY KEY (override_set_id);

ALTER TABLE ONLY quotad.plan
    ADD CONSTRAINT plan_pkey PRIMARY KEY (plan);

ALTER TABLE ONLY quotad.plan_version
    ADD CONSTRAINT plan_version_pkey PRIMARY KEY (plan_version_id);

ALTER TABLE ONLY quotad.plan_version
    ADD CONSTRAINT plan_version_unique UNIQUE (plan, version);

ALTER TABLE ONLY quotad.setting
    ADD CONSTRAINT setting_pkey PRIMARY KEY (single);

ALTER TABLE ONLY quotad.subject
    ADD CONSTRAINT subject_pkey PRIMARY KEY (tenant_id, subject_id);

ALTER TABLE ONLY quotad.subject
    ADD CONSTRAINT subject_unique UNIQUE (tenant_id, subject);

ALTER TABLE ONLY quotad.tenant_creation
    ADD CONSTRAINT tenant_creation_pkey PRIMARY KEY (single);

ALTER TABLE ONLY quotad.terms
    ADD CONSTRAINT terms_pkey PRIMARY KEY (terms_id);

CREATE INDEX account_of_next_plan ON quotad.account USING btree (next_plan, tenant) WHERE (next_plan IS NOT NULL);

CREATE INDEX account_of_plan ON quotad.account USING btree (plan, tenant) WHERE (tenant_id > 0);

CREATE INDEX account_of_status ON quotad.account USING btree (status, tenant) WHERE (tenant_id > 0);

CREATE INDEX account_plan ON quotad.account USING btree (plan);

CREATE INDEX api_key_admin ON quotad.api_key USING btree (key_id) WHERE (scopes @> ARRAY['admin'::text]);

CREATE INDEX api_key_audit ON quotad.api_key USING btree (key_id) WHERE (scopes @> ARRAY['audit'::text]);

CREATE INDEX api_key_decide ON quotad.api_key USING btree (key_id) WHERE (scopes @> ARRAY['decide'::text]);

CREATE INDEX api_key_good ON quotad.api_key USING btree (key_id) WHERE (revoked_at IS NULL);

CREATE INDEX api_key_read ON quotad.api_key USING btree (key_id) WHERE (scopes @> ARRAY['read'::text]);

CREATE INDEX api_key_revoked ON quotad.api_key USING btree (key_id) WHERE (revoked_at IS NOT NULL);

CREATE INDEX api_key_tenant ON quotad.api_key USING btree (tenant, key_id) WHERE (tenant IS NOT NULL);

CREATE INDEX config_change_at ON quotad.config_change USING btree (changed_at, change_id);

CREATE INDEX config_change_by ON quotad.config_change USING btree (changed_by, changed_at, change_id);

CREATE INDEX config_change_name ON quotad.config_change USING btree (name, changed_at, change_id);

CREATE INDEX config_change_object ON quotad.config_change USING btree (object, changed_at, change_id);

CREATE INDEX denial_at ON quotad.denial USING btree (at);

CREATE INDEX denial_count_minute ON quotad.denial_count USING btree (minute);

CREATE INDEX entry_corrected ON ONLY quotad.entry USING btree (tenant_id, ref_seq) WHERE (((units)::bigint < 0) AND (ref_seq > 0));

CREATE INDEX entry_correction ON ONLY quotad.entry USING btree (tenant_id, meter_id, at) WHERE ((units)::bigint < 0);

CREATE INDEX entry_hold ON ONLY quotad.entry USING btree (tenant_id, at, seq) WHERE ((kind)::text = ANY (ARRAY['hold'::text, 'extend'::text, 'settle'::text, 'release'::text, 'expire'::text]));

CREATE INDEX entry_subject_window ON ONLY quotad.entry USING btree (tenant_id, meter_id, subject_id, at, seq) WHERE (subject_id <> 0);

CREATE INDEX entry_window ON ONLY quotad.entry USING btree (tenant_id, meter_id, at, seq) WHERE (subject_id >= 0);

CREATE INDEX hold_expiring ON quotad.hold USING btree (expires_at) WHERE (state = 'open'::text);

CREATE INDEX hold_open ON quotad.hold USING btree (tenant_id, expires_at, hold_id) WHERE (state = 'open'::text);

CREATE INDEX hold_resolved_at ON quotad.hold USING btree (resolved_at) WHERE (state <> 'open'::text);

CREATE INDEX meter_catalog_version ON quotad.meter USING btree (catalog_version);

CREATE INDEX plan_catalog_version ON quotad.plan USING btree (catalog_version);

CREATE INDEX terms_of_tenant ON quotad.terms USING btree (tenant_id, at, terms_id);

CREATE TRIGGER append_only BEFORE DELETE OR UPDATE ON quotad.config_change FOR EACH ROW EXECUTE FUNCTION quotad.refuse_change();

CREATE TRIGGER append_only BEFORE DELETE OR UPDATE ON quotad.entry FOR EACH ROW EXECUTE FUNCTION quotad.refuse_change();

CREATE TRIGGER append_only BEFORE DELETE OR UPDATE ON quotad.override_set FOR EACH ROW EXECUTE FUNCTION quotad.refuse_change();

CREATE TRIGGER append_only BEFORE DELETE OR UPDATE ON quotad.plan_version FOR EACH ROW EXECUTE FUNCTION quotad.refuse_change();

CREATE TRIGGER append_only BEFORE DELETE OR UPDATE ON quotad.terms FOR EACH ROW EXECUTE FUNCTION quotad.refuse_change();

CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON quotad.config_change FOR EACH STATEMENT EXECUTE FUNCTION quotad.refuse_change();

CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON quotad.entry FOR EACH STATEMENT EXECUTE FUNCTION quotad.refuse_change();

CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON quotad.override_set FOR EACH STATEMENT EXECUTE FUNCTION quotad.refuse_change();

CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON quotad.plan_version FOR EACH STATEMENT EXECUTE FUNCTION quotad.refuse_change();

CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON quotad.terms FOR EACH STATEMENT EXECUTE FUNCTION quotad.refuse_change();

ALTER TABLE ONLY quotad.plan
    ADD CONSTRAINT plan_plan_version_id_fkey FOREIGN KEY (plan_version_id) REFERENCES quotad.plan_version(plan_version_id);

ALTER TABLE ONLY quotad.setting
    ADD CONSTRAINT setting_default_plan_fkey FOREIGN KEY (default_plan) REFERENCES quotad.plan(plan);

GRANT USAGE ON SCHEMA quotad TO quotad_service;

REVOKE ALL ON FUNCTION quotad.ensure_partitions(from_at timestamp with time zone, until_at timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION quotad.ensure_partitions(from_at timestamp with time zone, until_at timestamp with time zone) TO quotad_service;

GRANT SELECT,INSERT,UPDATE ON TABLE quotad.account TO quotad_service;

GRANT SELECT,INSERT ON TABLE quotad.api_key TO quotad_service;

GRANT UPDATE(revoked_at) ON TABLE quotad.api_key TO quotad_service;

GRANT UPDATE(revoked_by) ON TABLE quotad.api_key TO quotad_service;

GRANT SELECT ON TABLE quotad.catalog_version TO quotad_service;

GRANT UPDATE(version) ON TABLE quotad.catalog_version TO quotad_service;

GRANT SELECT,INSERT ON TABLE quotad.config_change TO quotad_service;

GRANT SELECT,INSERT,DELETE ON TABLE quotad.denial TO quotad_service;

GRANT SELECT,INSERT,DELETE ON TABLE quotad.denial_count TO quotad_service;

GRANT UPDATE(denials) ON TABLE quotad.denial_count TO quotad_service;

GRANT SELECT,INSERT ON TABLE quotad.entry TO quotad_service;

GRANT SELECT,INSERT,DELETE ON TABLE quotad.entry_dims TO quotad_service;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE quotad.hold TO quotad_service;

GRANT SELECT,INSERT ON TABLE quotad.idempotency TO quotad_service;

GRANT SELECT,INSERT ON TABLE quotad.meter TO quotad_service;

GRANT UPDATE(unit) ON TABLE quotad.meter TO quotad_service;

GRANT UPDATE(weights) ON TABLE quotad.meter TO quotad_service;

GRANT UPDATE(removed) ON TABLE quotad.meter TO quotad_service;

GRANT UPDATE(catalog_version) ON TABLE quotad.meter TO quotad_service;

GRANT UPDATE(on_expiry) ON TABLE quotad.meter TO quotad_service;

GRANT SELECT,INSERT,UPDATE ON TABLE quotad.meter_total TO quotad_service;

GRANT SELECT,INSERT ON TABLE quotad.override_set TO quotad_service;

GRANT USAGE ON SEQUENCE quotad.override_set_override_set_id_seq TO quotad_service;

GRANT SELECT,INSERT ON TABLE quotad.plan TO quotad_service;

GRANT UPDATE(plan_version_id) ON TABLE quotad.plan TO quotad_service;

GRANT UPDATE(removed) ON TABLE quotad.plan TO quotad_service;

GRANT UPDATE(catalog_version) ON TABLE quotad.plan TO quotad_service;

GRANT SELECT,INSERT ON TABLE quotad.plan_version TO quotad_service;

GRANT SELECT ON TABLE quotad.setting TO quotad_service;

GRANT UPDATE(default_plan) ON TABLE quotad.setting TO quotad_service;

GRANT UPDATE(default_plan_rate) ON TABLE quotad.setting TO quotad_service;

GRANT UPDATE(catalog_version) ON TABLE quotad.setting TO quotad_service;

GRANT SELECT,INSERT ON TABLE quotad.subject TO quotad_service;

GRANT UPDATE(subject) ON TABLE quotad.subject TO quotad_service;

GRANT UPDATE(salt) ON TABLE quotad.subject TO quotad_service;

GRANT SELECT ON TABLE quotad.tenant_creation TO quotad_service;

GRANT UPDATE(minute) ON TABLE quotad.tenant_creation TO quotad_service;

GRANT UPDATE(made) ON TABLE quotad.tenant_creation TO quotad_service;

GRANT SELECT,INSERT ON TABLE quotad.terms TO quotad_service;
