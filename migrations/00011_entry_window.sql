-- A subject's window must be found by entry_subject_window. Where a partition has no
-- statistics yet, the planner may take entry_window in its place and filter what it
-- finds by the subject: right, and slow for a tenant with many subjects. The condition
-- below holds for every row; what it does is that only queries that repeat it, those of
-- the whole tenant, can use the index.
--
-- Takes a lock on entry that stops writing while the index is built.

-- +goose Up
drop index quotad.entry_window;
create index entry_window on quotad.entry (tenant_id, meter_id, at, seq) where subject_id >= 0;
