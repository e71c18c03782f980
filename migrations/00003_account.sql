-- What changes with every decision of a tenant: the account row that everything of
-- a tenant is serial under, its newest totals, its levels, and its subjects.
--
-- These rows are updated in place all day: fillfactor leaves room on the page so
-- that updates stay HOT, and no index covers a column that a decision changes.

-- +goose Up
create table quotad.account (
  tenant_id      bigint      generated always as identity primary key,
  tenant         text        collate "C" not null,
  plan           text        collate "C" not null,
  status         text        not null default 'active',
  timezone       text        not null default 'UTC',
  billing_anchor smallint    not null default 1,
  calendar_past  jsonb,
  seq            bigint      not null default 0,
  last_at        timestamptz not null default '1970-01-01 00:00:00+00',
  head_hash      bytea       not null,
  subject_seq    bigint      not null default 0,
  created_at     timestamptz not null default clock_timestamp(),
  constraint account_tenant_unique unique (tenant),
  constraint account_tenant_length check (octet_length(tenant) between 1 and 256),
  constraint account_status check (status in ('active', 'suspended', 'closed')),
  constraint account_billing_anchor check (billing_anchor between 1 and 31),
  constraint account_seq check (seq >= 0 and subject_seq >= 0),
  constraint account_head_hash_is_sha256 check (octet_length(head_hash) = 32)
) with (fillfactor = 50);
comment on table quotad.account is
  'One row per tenant. Whoever changes anything of a tenant locks its row first.';
comment on column quotad.account.calendar_past is
  'Earlier calendars, [{"until": rfc3339, "timezone": name, "billing_anchor": day}], oldest first; null when never changed.';
create index account_plan on quotad.account (plan);

create table quotad.subject (
  tenant_id  bigint not null,
  subject_id bigint not null,
  subject    text   collate "C",
  salt       bytea,
  digest     bytea  not null,
  constraint subject_pkey primary key (tenant_id, subject_id),
  constraint subject_unique unique (tenant_id, subject),
  constraint subject_id_positive check (subject_id > 0),
  constraint subject_length check (octet_length(subject) between 1 and 256),
  constraint subject_erased_together check ((subject is null) = (salt is null)),
  constraint subject_digest_is_sha256 check (octet_length(digest) = 32)
);
comment on table quotad.subject is
  'A subject''s text and salt. The chain covers only the digest, so erasing the text breaks nothing.';

create table quotad.meter_total (
  tenant_id  bigint      not null,
  meter_id   integer     not null,
  subject_id bigint      not null default 0,
  units      bigint      not null default 0,
  held       bigint      not null default 0,
  calls      bigint      not null default 0,
  last_at    timestamptz not null,
  constraint meter_total_pkey primary key (tenant_id, meter_id, subject_id),
  constraint meter_total_range check (
    units between 0 and 999999999999999
    and held between 0 and 999999999999999
    and calls >= 0)
) with (fillfactor = 50);
comment on table quotad.meter_total is
  'The newest running total of a meter; subject 0 is the whole tenant. last_at is the last entry that used units.';

create table quotad.level (
  tenant_id   bigint      not null,
  limit_name  text        collate "C" not null,
  subject_id  bigint      not null default 0,
  algorithm   text        collate "C" not null,
  plan        text        collate "C" not null,
  since       integer     not null,
  units       bigint      not null,
  remainder   bigint      not null,
  denominator bigint      not null,
  at          timestamptz not null,
  constraint level_pkey primary key (tenant_id, limit_name, subject_id),
  constraint level_remainder check (denominator > 0 and remainder >= 0 and remainder < denominator)
) with (fillfactor = 50);
comment on table quotad.level is
  'The level of a token bucket, GCRA or leaky bucket: units + remainder/denominator at an instant.';
comment on column quotad.level.since is
  'The version of the plan that introduced this limit with this algorithm; another one means: start full.';

grant select, insert, update on quotad.account to quotad_service;
grant select, insert, update (subject, salt) on quotad.subject to quotad_service;
grant select, insert, update on quotad.meter_total to quotad_service;
grant select, insert, update, delete on quotad.level to quotad_service;
