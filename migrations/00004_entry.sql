-- The ledger: entries, their erasable text, and the partitions that hold them.
--
-- Partitioned by month so that old entries leave by dropping a table. The service
-- role may append and read; a trigger on every partition refuses the rest even to
-- the owner.

-- +goose Up
create table quotad.entry (
  tenant_id       bigint      not null,
  seq             bigint      not null,
  at              timestamptz not null,
  effective_at    timestamptz not null,
  kind            text        collate "C" not null,
  meter_id        integer     not null,
  subject_id      bigint      not null,
  units           bigint      not null,
  held            bigint      not null,
  total           bigint      not null,
  subject_total   bigint      not null,
  request_id      uuid        not null,
  batch_id        uuid        not null,
  ref_seq         bigint      not null,
  plan_version_id bigint      not null,
  limits_used     bigint[]    not null,
  dims_digest     bytea,
  hash            bytea       not null,
  constraint entry_pkey primary key (tenant_id, seq, at),
  constraint entry_seq check (seq > 0 and ref_seq >= 0 and ref_seq < seq),
  constraint entry_kind check (kind in (
    'consume', 'hold', 'extend', 'settle', 'release', 'expire', 'reverse', 'adjust', 'grant')),
  constraint entry_range check (
    units between -999999999999999 and 999999999999999
    and held between -999999999999999 and 999999999999999
    and total between 0 and 999999999999999
    and subject_total between 0 and 999999999999999),
  constraint entry_hash_is_sha256 check (octet_length(hash) = 32)
) partition by range (at);
comment on table quotad.entry is 'One row per change of a tenant''s usage; numbered 1, 2, 3 … per tenant without gaps.';
comment on column quotad.entry.total is 'Units of this tenant and meter up to and including this entry.';
comment on column quotad.entry.subject_total is 'The same of this subject alone; 0 without a subject.';
comment on column quotad.entry.ref_seq is 'The entry this one answers; 0 for none.';
comment on column quotad.entry.limits_used is
  'What each limit of the plan version on this meter had used just before, in the plan''s order.';

-- A window starts at its first entry: one descent here finds it, whatever the window holds.
create index entry_window on quotad.entry (tenant_id, meter_id, at, seq);
create index entry_subject_window on quotad.entry (tenant_id, meter_id, subject_id, at, seq)
  where subject_id <> 0;

create trigger append_only before update or delete on quotad.entry
  for each row execute function quotad.refuse_change();
create trigger append_only_truncate before truncate on quotad.entry
  for each statement execute function quotad.refuse_change();

create table quotad.entry_dims (
  tenant_id bigint      not null,
  seq       bigint      not null,
  at        timestamptz not null,
  salt      bytea       not null,
  dims      json        not null,
  constraint entry_dims_pkey primary key (tenant_id, seq, at)
) partition by range (at);
comment on table quotad.entry_dims is
  'The text behind entry.dims_digest = SHA-256(salt, dims), kept apart so that it can be erased.';

grant select, insert on quotad.entry to quotad_service;
grant select, insert, delete on quotad.entry_dims to quotad_service;
