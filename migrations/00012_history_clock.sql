-- The configuration's history is read at past instants beside the entries: what was in
-- force when. Its stamps come from the clock that decisions have.
--
-- Takes a short lock on each table.

-- +goose Up
alter table quotad.config_change alter column changed_at set default quotad.decision_clock();
alter table quotad.plan_version alter column created_at set default quotad.decision_clock();
