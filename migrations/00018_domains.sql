-- The rules for single columns of the rows that each decision writes move from their tables
-- into domains.
--
-- PostgreSQL reads the text of a table's check constraints anew in every statement that
-- writes the table, and an update checks them for the columns that it leaves as they are, too.
-- The rules of a domain are read once in a session, and checked where a value of it is set. What
-- is between columns stays with the table.
--
-- No table is rewritten, which would also pack the pages that updates need room in: a
-- domain gets its rule when columns have it already, and what they hold is looked through
-- then. The small indexes on entry that speak of kind or units are built anew. It all takes
-- locks that keep decisions waiting meanwhile.

-- +goose Up
create domain quotad.usage_change as bigint;
create domain quotad.running_total as bigint;
create domain quotad.counter as bigint;
create domain quotad.open_holds as integer;
create domain quotad.sha256 as bytea;
create domain quotad.level_object as json;
create domain quotad.entry_kind as text collate "C";
create domain quotad.tenant_name as text collate "C";
create domain quotad.tenant_status as text;
create domain quotad.day_of_month as smallint;

alter table quotad.account
  drop constraint account_tenant_length,
  drop constraint account_status,
  drop constraint account_billing_anchor,
  drop constraint account_seq,
  drop constraint account_head_hash_is_sha256,
  drop constraint account_open_holds,
  alter column tenant         type quotad.tenant_name,
  alter column status         type quotad.tenant_status,
  alter column billing_anchor type quotad.day_of_month,
  alter column seq            type quotad.counter,
  alter column subject_seq    type quotad.counter,
  alter column head_hash      type quotad.sha256,
  alter column open_holds     type quotad.open_holds;

alter table quotad.meter_total
  drop constraint meter_total_range,
  drop constraint meter_total_levels,
  drop constraint meter_total_returned,
  alter column units    type quotad.running_total,
  alter column returned type quotad.running_total,
  alter column held     type quotad.running_total,
  alter column calls    type quotad.counter,
  alter column levels   type quotad.level_object,
  add constraint meter_total_returned check (returned <= units);

alter table quotad.entry
  drop constraint entry_seq,
  drop constraint entry_kind,
  drop constraint entry_range,
  drop constraint entry_hash_is_sha256,
  alter column kind          type quotad.entry_kind,
  alter column units         type quotad.usage_change,
  alter column held          type quotad.usage_change,
  alter column total         type quotad.running_total,
  alter column subject_total type quotad.running_total,
  alter column hash          type quotad.sha256,
  add constraint entry_seq check (0 <= ref_seq and ref_seq < seq);

alter domain quotad.usage_change  add constraint usage_change_range check (value between -999999999999999 and 999999999999999);
alter domain quotad.running_total add constraint running_total_range check (value between 0 and 999999999999999);
alter domain quotad.counter       add constraint counter_not_negative check (value >= 0);
alter domain quotad.open_holds    add constraint open_holds_range check (value between 0 and 1000);
alter domain quotad.sha256        add constraint sha256_length check (octet_length(value) = 32);
alter domain quotad.level_object  add constraint level_object_type check (json_typeof(value) = 'object');
alter domain quotad.entry_kind    add constraint entry_kind_known check (value in (
  'consume', 'hold', 'extend', 'settle', 'release', 'expire', 'reverse', 'adjust', 'grant'));
alter domain quotad.tenant_name   add constraint tenant_name_length check (octet_length(value) between 1 and 256);
alter domain quotad.tenant_status add constraint tenant_status_known check (value in ('active', 'suspended', 'closed'));
alter domain quotad.day_of_month  add constraint day_of_month_range check (value between 1 and 31);

comment on domain quotad.usage_change is 'Units, or units set aside, that an entry adds; below 0 for what it takes off.';
comment on domain quotad.running_total is 'Units since a tenant''s first entry.';
comment on domain quotad.level_object is 'What the levels of limits are kept in; see meter_total.levels.';
