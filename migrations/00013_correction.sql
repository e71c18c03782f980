-- Corrections: entries whose units are below 0. A reversal gives units back, and so does
-- the settle of a hold whose expiry had charged too much.
--
-- Running totals never fall, or a window could not be a subtraction any more. So a
-- correction is in no running total: it is summed by an index of its own, which is as
-- small as corrections are few, and counts in windows from the instant of what it
-- corrects.
--
-- entry_corrected finds what was given back of one entry. Its condition says ref_seq > 0,
-- which holds for every correction, so that only queries that repeat it use the index.
--
-- Takes a lock on entry that stops writing while the indexes are built, which is short:
-- no entry has negative units yet.

-- +goose Up
create index entry_correction on quotad.entry (tenant_id, meter_id, at) where units < 0;
create index entry_corrected on quotad.entry (tenant_id, ref_seq) where units < 0 and ref_seq > 0;

alter table quotad.meter_total add column returned bigint not null default 0;
alter table quotad.meter_total add constraint meter_total_returned check (returned between 0 and units);
comment on column quotad.meter_total.returned is 'Units given back by corrections, which are in no running total.';
