// Package calendar cuts time into the minutes, hours, days, weeks, months and years of
// a tenant: by its time zone, with weeks from Monday and months from its billing
// anchor, and into the buckets of a series.
//
// It is pure: instants are microseconds since the Unix epoch, they arrive as
// arguments, and nothing here reads a clock. Zones come from the tzdata that is built
// in, for machines that have none installed.
//
// State: none. A [Calendar] is immutable and safe for concurrent use.
//
// Failure: only an unknown zone is an error. Windows of one word tile time: every
// instant is in exactly one, whatever clocks and calendars did around it.
package calendar
