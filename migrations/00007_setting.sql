-- What holds for the whole database rather than for one object: the plan that an
-- unknown tenant gets with its first call, and how many tenants may come into being
-- so within a minute.
--
-- setting is configuration like meters and plans: one row, stamped with the version
-- that changed it. tenant_creation is what the bound counts by: one row that every
-- such creation updates, and that no decision reads.

-- +goose Up
create table quotad.setting (
  single            boolean primary key default true,
  default_plan      text    collate "C" references quotad.plan,
  default_plan_rate integer not null default 600,
  catalog_version   bigint  not null default 0,
  constraint setting_single check (single),
  constraint setting_default_plan_rate check (default_plan_rate between 0 and 60000)
);
comment on column quotad.setting.default_plan is 'What an unknown tenant gets with its first consume; null: nothing, it stays unknown.';
comment on column quotad.setting.default_plan_rate is 'How many tenants the default plan may make a minute.';
insert into quotad.setting default values;

create table quotad.tenant_creation (
  single boolean     primary key default true,
  minute timestamptz not null default '1970-01-01 00:00:00+00',
  made   integer     not null default 0,
  constraint tenant_creation_single check (single),
  constraint tenant_creation_made check (made >= 0)
) with (fillfactor = 10);
comment on table quotad.tenant_creation is 'How many tenants the default plan has made in a minute, the newest one alone.';
insert into quotad.tenant_creation default values;

alter table quotad.config_change drop constraint config_change_object;
alter table quotad.config_change add constraint config_change_object
  check (object in ('meter', 'plan', 'tenant', 'key', 'settings'));

grant select, update (default_plan, default_plan_rate, catalog_version) on quotad.setting to quotad_service;
grant select, update (minute, made) on quotad.tenant_creation to quotad_service;
