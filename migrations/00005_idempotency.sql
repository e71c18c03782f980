-- Answers kept for retries: the same key gives the same answer again. The account
-- lock already makes (tenant, key) unique, so the table can be cut into weeks that
-- are dropped whole.

-- +goose Up
create table quotad.idempotency (
  tenant_id    bigint      not null,
  key          text        collate "C" not null,
  created_at   timestamptz not null,
  request_hash bytea       not null,
  first_seq    bigint      not null,
  answer       bytea       not null,
  constraint idempotency_pkey primary key (tenant_id, key, created_at),
  constraint idempotency_key_length check (octet_length(key) between 1 and 255),
  constraint idempotency_hash_is_sha256 check (octet_length(request_hash) = 32)
) partition by range (created_at);

grant select, insert on quotad.idempotency to quotad_service;
