-- Room for the next version of a row that each decision updates, without pruning its page
-- at each visit.
--
-- An update that stays in its page (HOT) needs room there, which fillfactor keeps. But
-- PostgreSQL prunes a page whenever it is visited with less room than that, and logs it: at
-- half full that is at every update. So a new row now brings its room along, as a text that its
-- first update drops, and fillfactor is 90: half of the page is free all the same, and it is
-- pruned when nine tenths of it are used.
--
-- Rows that are there keep the room that they have. What restores a dump, or rewrites these
-- tables, fills their pages; updates then move rows to pages with room, once.

-- +goose Up
alter table quotad.account add column room text;
alter table quotad.account alter column room set default repeat(' ', 160);
alter table quotad.account set (fillfactor = 90);
comment on column quotad.account.room is 'As long as the row, until its first entry: room in the page for its next version. Means nothing.';

alter table quotad.meter_total add column room text;
alter table quotad.meter_total alter column room set default repeat(' ', 160);
alter table quotad.meter_total set (fillfactor = 90);
comment on column quotad.meter_total.room is 'As long as the row, until its first update: room in the page for its next version. Means nothing.';
