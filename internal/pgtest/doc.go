// Package pgtest gives a test its own migrated PostgreSQL database, a clock that the
// test sets, and connections that fail where the test says.
//
// State: one server per test process, from QUOTAD_TEST_DATABASE_URL (a superuser's
// URL) or else started by the first test that needs it; on it a template database,
// named after a hash of the migrations, that every [New] clones. A clone takes about
// 40 ms in memory and its drop 9 ms; truncating instead would have saved half of
// that and would have had to restore seed rows, the clock and partitions.
//
// Time: [DB.SetClock] replaces quotad.decision_clock() in one database only.
//
// Failure: everything here ends the test with t.Fatal. A machine without PostgreSQL
// fails the test, except with -short. The database of a failed test is kept when the
// server outlives the process, and its name is in the test's log.
//
// Concurrency: all of it may be used from parallel tests, and by several processes
// on one server. [Main] or [Run] must run the tests of a package that uses this one:
// they stop the server and look for goroutines that nobody waited for.
package pgtest
