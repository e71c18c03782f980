-- Lists of the configuration are filtered and paged; each filter has an index in the
-- order of its list, so that a page costs what it shows.
--
-- None covers a column that a decision changes, so decisions' updates of account stay
-- HOT. Building the two on account stops decisions meanwhile: about a second per
-- million tenants.

-- +goose Up
-- The condition holds for every account. It keeps these two from every statement that
-- does not repeat it: both hold the tenant, and a decision that finds its tenants by
-- walking one of them would be right and slow.
create index account_of_plan on quotad.account (plan, tenant) where tenant_id > 0;
create index account_of_status on quotad.account (status, tenant) where tenant_id > 0;

create index api_key_tenant on quotad.api_key (tenant, key_id) where tenant is not null;
create index api_key_good on quotad.api_key (key_id) where revoked_at is null;
create index api_key_revoked on quotad.api_key (key_id) where revoked_at is not null;
create index api_key_decide on quotad.api_key (key_id) where scopes @> array['decide'];
create index api_key_read on quotad.api_key (key_id) where scopes @> array['read'];
create index api_key_audit on quotad.api_key (key_id) where scopes @> array['audit'];
create index api_key_admin on quotad.api_key (key_id) where scopes @> array['admin'];

-- The history is listed by time; two changes of one transaction may share an instant.
create index config_change_at on quotad.config_change (changed_at, change_id);
create index config_change_name on quotad.config_change (name, changed_at, change_id);
create index config_change_object on quotad.config_change (object, changed_at, change_id);
create index config_change_by on quotad.config_change (changed_by, changed_at, change_id);
