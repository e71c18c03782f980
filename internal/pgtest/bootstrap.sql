-- What a test database has besides the migrations: the schema pgtest with the clock
-- that a test may set, and a login that stands for a running instance.

do $$
begin
  if not exists (select from pg_catalog.pg_roles where rolname = 'quotad_test') then
    create role quotad_test login password 'quotad_test';
  end if;
end;
$$;
grant quotad_service to quotad_test;

create schema pgtest;
grant usage on schema pgtest to quotad_service;

create table pgtest.clock (
  single   boolean     primary key default true check (single),
  at       timestamptz not null,
  original text        not null
);
comment on table pgtest.clock is 'The instant a test has set, and the definition of the clock it replaced; empty with the real clock.';
grant select on pgtest.clock to quotad_service;

create function pgtest.set_clock(instant timestamptz) returns void
  language plpgsql
as $$
begin
  update pgtest.clock set at = instant;
  if found then
    return;
  end if;
  insert into pgtest.clock (at, original)
  values (instant, pg_get_functiondef('quotad.decision_clock()'::regprocedure));
  create or replace function quotad.decision_clock() returns timestamptz
    language sql volatile parallel safe
    as 'select at from pgtest.clock';
end;
$$;

create function pgtest.real_clock() returns void
  language plpgsql
as $$
declare
  definition text;
begin
  delete from pgtest.clock returning original into definition;
  if found then
    execute definition;
  end if;
end;
$$;
