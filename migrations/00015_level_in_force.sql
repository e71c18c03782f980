-- A level says what it was written under, a plan version and a set of overrides: so that
-- the time since then counts by everything that the tenant had meanwhile, and not only by
-- what it has now.
--
-- Rewrites level, and keeps decisions waiting meanwhile.

-- +goose Up
alter table quotad.level
  add column plan_version_id bigint,
  add column override_set_id bigint not null default 0;
update quotad.level l
set plan_version_id = (
  select v.plan_version_id
  from quotad.plan_version v
  where v.plan = l.plan and v.version >= l.since
  order by v.created_at <= l.at desc, case when v.created_at <= l.at then v.version else -v.version end desc
  limit 1);
alter table quotad.level
  alter column plan_version_id set not null,
  drop column algorithm,
  drop column plan,
  drop column since;
comment on column quotad.level.plan_version_id is 'The plan version that it was last written under.';
comment on column quotad.level.override_set_id is 'The overrides that it was last written under; 0 for none.';
