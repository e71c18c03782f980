-- The levels of limits move into the row of the running total that they count by: a
-- decision writes that row anyway, so it updates one row less.
--
-- A level belongs to the meter that its limit had in the plan version it was written under.
-- One whose version has no such limit, or no such meter, says nothing any more: a limit that
-- its plan gave another meter starts full.
--
-- Updates meter_total once for each row with a level, and keeps decisions waiting meanwhile.

-- +goose Up
alter table quotad.meter_total
  add column levels json,
  add constraint meter_total_levels check (json_typeof(levels) = 'object');
comment on column quotad.meter_total.levels is
  'The levels of token buckets, GCRA and leaky buckets on the meter: those per tenant at subject 0, those per subject at the subject. '
  '{limit: [plan_version_id, override_set_id, units, remainder, denominator, at in microseconds]}: units + remainder/denominator at an '
  'instant, and the plan version and the overrides (0 for none) that it was written under. Limits that the plan does not have now stay. '
  'Null for none.';
update quotad.meter_total t
set levels = kept.levels
from (
  select l.tenant_id, m.meter_id, l.subject_id,
         json_object_agg(l.limit_name, json_build_array(
           l.plan_version_id, l.override_set_id, l.units, l.remainder, l.denominator,
           (extract(epoch from l.at) * 1000000)::bigint) order by l.limit_name) as levels
  from quotad.level l
  join quotad.plan_version v on v.plan_version_id = l.plan_version_id
  cross join lateral jsonb_array_elements(v.spec -> 'limits') as rule
  join quotad.meter m on m.meter = rule ->> 'meter'
  where rule ->> 'name' = l.limit_name
  group by l.tenant_id, m.meter_id, l.subject_id) kept
where t.tenant_id = kept.tenant_id and t.meter_id = kept.meter_id and t.subject_id = kept.subject_id;
drop table quotad.level;
