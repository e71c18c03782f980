-- What was denied: the last denials of each tenant with their reason, and counts per
-- minute. No decision reads them and no bill is made of them; they are written in the
-- background, after the answer has left, so a crash may lose the last second.
--
-- Bounded: the service keeps the newest 1,000 denials of a tenant, and both tables for
-- 35 days, and deletes the rest itself.

-- +goose Up
create table quotad.denial (
  tenant_id       bigint      not null,
  at              timestamptz not null,
  request_id      uuid        not null,
  after_seq       bigint      not null,
  plan_version_id bigint      not null,
  reason          text        collate "C" not null,
  subject         text        collate "C",
  limit_names     text[]      not null,
  meters          text[]      not null,
  decision        json        not null,
  constraint denial_pkey primary key (tenant_id, at, request_id),
  constraint denial_after_seq check (after_seq >= 0)
);
comment on column quotad.denial.after_seq is 'The tenant''s newest entry when it was decided; 0 for none.';
comment on column quotad.denial.limit_names is 'The limits that denied; empty where the reason is none of a limit.';
comment on column quotad.denial.decision is 'The answer as it was sent, without the subject.';
create index denial_at on quotad.denial (at);

create table quotad.denial_count (
  tenant_id  bigint      not null,
  minute     timestamptz not null,
  limit_name text        collate "C" not null,
  reason     text        collate "C" not null,
  denials    bigint      not null,
  constraint denial_count_pkey primary key (tenant_id, minute, limit_name, reason),
  constraint denial_count_positive check (denials > 0)
) with (fillfactor = 50);
comment on table quotad.denial_count is
  'Denied requests per minute. limit_name '''' counts each request once; a name counts those which that limit denied.';
create index denial_count_minute on quotad.denial_count (minute);

grant select, insert, delete on quotad.denial to quotad_service;
grant select, insert, update (denials), delete on quotad.denial_count to quotad_service;
