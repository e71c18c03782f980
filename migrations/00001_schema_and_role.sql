-- The schema, the role that serves requests, and the one clock.
--
-- quotad_service owns nothing: it may read and append, and only the columns and
-- tables granted to it. Whoever runs `quotad serve` logs in as a member of it.
-- Roles belong to the whole server, so two databases migrated at once may both
-- try to create it: losing that race is success.

-- +goose Up
create schema quotad;

-- +goose StatementBegin
do $$
begin
  if not exists (select from pg_catalog.pg_roles where rolname = 'quotad_service') then
    create role quotad_service nologin;
  end if;
exception when duplicate_object or unique_violation then
  null;
end;
$$;
-- +goose StatementEnd

grant usage on schema quotad to quotad_service;

-- So that an instance can tell, before it serves, whether the schema is its own.
grant select on goose_db_version to quotad_service;

-- decision_clock is the only source of "now" in a decision. Tests replace it in
-- their own database; production never does.
create function quotad.decision_clock() returns timestamptz
  language sql volatile parallel safe
  return clock_timestamp();

comment on function quotad.decision_clock() is
  'The instant a decision is made at; every decision reads time from here and nowhere else.';
