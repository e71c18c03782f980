-- What is configured: meters, plans and their immutable versions, keys, and who
-- changed what.
--
-- catalog_version has one row. Every change raises it in the same transaction and
-- stamps the rows it touched, so an instance that knows version v learns all that
-- is new by reading the rows with catalog_version > v: a decision checks one
-- number under its lock instead of every plan.

-- +goose Up
create table quotad.catalog_version (
  single  boolean primary key default true,
  version bigint  not null,
  constraint catalog_version_single check (single),
  constraint catalog_version_not_negative check (version >= 0)
);
insert into quotad.catalog_version (version) values (0);

create table quotad.meter (
  meter_id        integer generated always as identity primary key,
  meter           text    collate "C" not null,
  unit            text    not null,
  weights         jsonb   not null default '{}',
  removed         boolean not null default false,
  catalog_version bigint  not null,
  constraint meter_unique unique (meter),
  constraint meter_name check (meter ~ '^[a-z0-9][a-z0-9._-]{0,63}$'),
  constraint meter_unit check (octet_length(unit) between 1 and 64),
  constraint meter_weights check (jsonb_typeof(weights) = 'object')
);
comment on column quotad.meter.weights is
  'Pool name to weight, a decimal string with at most 6 decimals; {} means the meter has no pools.';
create index meter_catalog_version on quotad.meter (catalog_version);

create table quotad.plan_version (
  plan_version_id bigint      generated always as identity primary key,
  plan            text        collate "C" not null,
  version         integer     not null,
  spec            jsonb       not null,
  created_at      timestamptz not null default clock_timestamp(),
  created_by      text        not null,
  constraint plan_version_unique unique (plan, version),
  constraint plan_version_name check (plan ~ '^[a-z0-9][a-z0-9._-]{0,63}$'),
  constraint plan_version_positive check (version > 0)
);
comment on table quotad.plan_version is
  'Every version a plan ever had. Entries name the version they were decided under, so rows never change.';

create table quotad.plan (
  plan            text    collate "C" primary key,
  plan_version_id bigint  not null references quotad.plan_version,
  removed         boolean not null default false,
  catalog_version bigint  not null
);
comment on table quotad.plan is 'The current version of each plan.';
create index plan_catalog_version on quotad.plan (catalog_version);

create table quotad.api_key (
  key_id      text        collate "C" primary key,
  env         text        not null,
  secret_hash bytea       not null,
  scopes      text[]      not null,
  tenant      text        collate "C",
  name        text        not null default '',
  created_at  timestamptz not null default clock_timestamp(),
  created_by  text        not null,
  revoked_at  timestamptz,
  revoked_by  text,
  constraint api_key_secret_is_sha256 check (octet_length(secret_hash) = 32),
  constraint api_key_scopes check (
    cardinality(scopes) > 0 and scopes <@ array['decide', 'read', 'audit', 'admin'])
);
comment on column quotad.api_key.tenant is 'The one tenant this key may act for; null means every tenant.';

create table quotad.config_change (
  change_id  bigint      generated always as identity primary key,
  changed_at timestamptz not null default clock_timestamp(),
  changed_by text        not null,
  object     text        not null,
  name       text        not null,
  before     jsonb,
  after      jsonb,
  constraint config_change_object check (object in ('meter', 'plan', 'tenant', 'key'))
);
comment on table quotad.config_change is 'Who changed what, from what, to what. Append-only.';

-- +goose StatementBegin
create function quotad.refuse_change() returns trigger
  language plpgsql
  set search_path = pg_catalog
as $$
begin
  raise exception '%.% is append-only: % refused', tg_table_schema, tg_table_name, tg_op
    using errcode = 'insufficient_privilege';
end;
$$;
-- +goose StatementEnd
create trigger append_only before update or delete on quotad.plan_version
  for each row execute function quotad.refuse_change();
create trigger append_only_truncate before truncate on quotad.plan_version
  for each statement execute function quotad.refuse_change();
create trigger append_only before update or delete on quotad.config_change
  for each row execute function quotad.refuse_change();
create trigger append_only_truncate before truncate on quotad.config_change
  for each statement execute function quotad.refuse_change();

grant select, update (version) on quotad.catalog_version to quotad_service;
grant select, insert, update (unit, weights, removed, catalog_version) on quotad.meter to quotad_service;
grant select, insert on quotad.plan_version to quotad_service;
grant select, insert, update (plan_version_id, removed, catalog_version) on quotad.plan to quotad_service;
grant select, insert, update (revoked_at, revoked_by) on quotad.api_key to quotad_service;
grant select, insert on quotad.config_change to quotad_service;
