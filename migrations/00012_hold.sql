-- Holds: cost that is set aside now and settled later with what it came to.
--
-- One row per hold, so that each is resolved once and a leak has a name. While it is
-- open it is subtracted from what is available; nothing of it is in a window or a
-- level. Its entries tell the same; the row is what a decision reads of them.
--
-- Adding columns with a constant default rewrites nothing. Building the index takes a lock
-- on entry that stops writing, and is short: there are no such entries yet.

-- +goose Up
create table quotad.hold (
  tenant_id       bigint      not null,
  hold_id         uuid        not null,
  subject_id      bigint      not null,
  state           text        collate "C" not null,
  meter_ids       integer[]   not null,
  units           bigint[]    not null,
  first_seq       bigint      not null,
  started_at      timestamptz not null,
  expires_at      timestamptz not null,
  resolved_at     timestamptz,
  expired_seq     bigint,
  charged         bigint[],
  resolution_hash bytea,
  answer          bytea,
  constraint hold_pkey primary key (tenant_id, hold_id),
  constraint hold_state check (state in ('open', 'settled', 'released', 'expired')),
  constraint hold_meters check (
    cardinality(meter_ids) between 1 and 16 and cardinality(units) = cardinality(meter_ids)),
  constraint hold_first_seq check (first_seq > 0),
  constraint hold_lasts check (expires_at > started_at),
  constraint hold_resolved check ((state = 'open') = (resolved_at is null)),
  constraint hold_expired check ((expired_seq is null) = (charged is null) and (state <> 'expired' or charged is not null)),
  constraint hold_charged check (charged is null or cardinality(charged) = cardinality(meter_ids)),
  constraint hold_resolution check (
    (resolution_hash is null) = (answer is null) and (answer is not null) = (state in ('settled', 'released'))),
  constraint hold_hash_is_sha256 check (octet_length(resolution_hash) = 32)
) with (fillfactor = 70);
comment on table quotad.hold is
  'One row per hold. units[i] of meter_ids[i] are set aside while it is open; its entries begin at first_seq.';
comment on column quotad.hold.expired_seq is 'The first entry of its expiry; null if it did not expire.';
comment on column quotad.hold.charged is 'What its expiry took, by meter, where the meter says so; null if it did not expire.';
comment on column quotad.hold.resolution_hash is 'What settle or release it was, so that repeating it gives the same answer again.';
create index hold_open on quotad.hold (tenant_id, expires_at, hold_id) where state = 'open';
create index hold_expiring on quotad.hold (expires_at) where state = 'open';
create index hold_resolved_at on quotad.hold (resolved_at) where state <> 'open';

alter table quotad.account add column open_holds integer not null default 0;
alter table quotad.account add constraint account_open_holds check (open_holds between 0 and 1000);
comment on column quotad.account.open_holds is 'How many of the tenant''s holds are open: 0 saves looking for them.';

alter table quotad.entry add column limits_held bigint[];
alter table quotad.entry add column override_set_id bigint not null default 0;
comment on column quotad.entry.limits_held is 'What was set aside of each limit, in the order of limits_used; null where nothing was.';
comment on column quotad.entry.effective_at is
  'The instant the units count from; of a hold and its extension, when it ends if nothing resolves it.';

alter table quotad.meter add column on_expiry text not null default 'release';
alter table quotad.meter add constraint meter_on_expiry check (on_expiry in ('release', 'charge'));
comment on column quotad.meter.on_expiry is 'What becomes of a hold that expires: nothing, or the charge of all of it.';

-- No hold outlives a day, so what was open at a past instant follows from a day of these.
create index entry_hold on quotad.entry (tenant_id, at, seq)
  where kind in ('hold', 'extend', 'settle', 'release', 'expire');

grant select, insert, update, delete on quotad.hold to quotad_service;
grant update (on_expiry) on quotad.meter to quotad_service;
