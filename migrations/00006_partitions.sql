-- Partitions are made ahead by the service through this function, which runs with
-- its owner's rights because the service owns nothing. Making one that exists does
-- nothing, so it may be called at any time by anyone who serves.
--
-- It takes a share update exclusive lock on the parent (attach), never one that
-- stops reading or writing, and an advisory lock so that instances do it in turn.

-- +goose Up
-- +goose StatementBegin
create function quotad.ensure_partitions(from_at timestamptz, until_at timestamptz) returns integer
  language plpgsql
  security definer
  set search_path = pg_catalog
  set timezone = 'UTC'
  set lock_timeout = '5s'
as $$
declare
  parent  record;
  lower_at timestamptz;
  upper_at timestamptz;
  child   text;
  made    integer := 0;
begin
  if until_at < from_at or until_at > from_at + interval '2 years' then
    raise exception 'from_at and until_at must be in order and at most 2 years apart'
      using errcode = 'invalid_parameter_value';
  end if;
  perform pg_advisory_xact_lock(hashtextextended('quotad.ensure_partitions', 0));
  for parent in
    select * from (values ('entry', 'month'), ('entry_dims', 'month'), ('idempotency', 'week')) as p(name, step)
  loop
    lower_at := date_trunc(parent.step, from_at);
    while lower_at <= until_at loop
      upper_at := lower_at + ('1 ' || parent.step)::interval;
      child := parent.name || to_char(lower_at, '_YYYYMMDD');
      if to_regclass(format('quotad.%I', child)) is null then
        execute format('create table quotad.%I (like quotad.%I including defaults including constraints)',
          child, parent.name);
        execute format('alter table quotad.%I attach partition quotad.%I for values from (%L) to (%L)',
          parent.name, child, lower_at, upper_at);
        if parent.name = 'entry' then
          execute format('create trigger append_only_truncate before truncate on quotad.%I
            for each statement execute function quotad.refuse_change()', child);
        end if;
        made := made + 1;
      end if;
      lower_at := upper_at;
    end loop;
  end loop;
  return made;
end;
$$;
-- +goose StatementEnd

comment on function quotad.ensure_partitions is
  'Makes the partitions that cover from_at to until_at, at most 2 years; returns how many were new.';
revoke all on function quotad.ensure_partitions from public;
grant execute on function quotad.ensure_partitions to quotad_service;

select quotad.ensure_partitions(now() - interval '1 month', now() + interval '2 months');
