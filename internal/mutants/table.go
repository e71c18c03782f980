package main

// table is the faults that are planted. Each is one that somebody could make, or has made
// elsewhere, and that would cost units, money or trust; its test is the quickest that is
// known to notice. A text that no longer stands in its file fails `go test`.
var table = []mutant{
	// One transaction, under one lock.
	{
		"accounts are read without a lock", "internal/ledger/store_read.go",
		"for update of a", "--",
		"internal/ledger", "TestAccountsLockedElsewhereAreLeftOut",
	},
	{
		"answers leave before the commit", "internal/quota/batch.go",
		`	if err := b.commit(ctx); err != nil {
		b.runner.session.Rollback(ctx, b.runner.engine.config.readTimeout)
		return err
	}
	b.deliver()
`,
		`	b.deliver()
	if err := b.commit(ctx); err != nil {
		b.runner.session.Rollback(ctx, b.runner.engine.config.readTimeout)
	}
`,
		"internal/quota", "TestALostCommitReplyIsResolved/cut_before_the_commit_arrived",
	},
	{
		"a lost commit is taken for done", "internal/quota/runner.go",
		"return found == posting.BatchID, nil", "return found == posting.BatchID || ctx.Err() == nil, nil",
		"internal/quota", "TestALostCommitReplyIsResolved/cut_before_the_commit_arrived",
	},
	{
		"a lost commit is taken for undone", "internal/quota/runner.go",
		"return found == posting.BatchID, nil", "return found == posting.BatchID && ctx.Err() != nil, nil",
		"internal/quota", "TestALostCommitReplyIsResolved/cut_after_the_commit_was_applied",
	},
	{
		"waits in a lost batch are not read again", "internal/quota/runner.go",
		"	b.queueCrossings(&queries)\n", "",
		"internal/quota", "TestADenialInALostBatchTellsItsTrueWait",
	},
	{
		"a commit that did not wait for its standby counts", "internal/pg/session.go",
		`case err == nil && tag.String() == "COMMIT" && !warned.Load():`, `case err == nil && tag.String() == "COMMIT":`,
		"internal/pg", "TestACommitThatDidNotWaitForItsStandbyIsUnknown",
	},
	{
		"the end of a bound sends a cancel", "internal/pg/session.go",
		"if connected.Load() {", "if connected.Load() && s.pooled {",
		"internal/pg", "TestQueryEndsWithItsContextAndSendsNoCancel",
	},
	{
		"a call that was given up is decided", "internal/quota/batch.go",
		"return !c.send()", "return false",
		"internal/quota", "TestACallThatIsGivenUpWhileItsBatchReadsIsNotDecided",
	},
	{
		"later calls overtake those of a parked tenant", "internal/quota/worker.go",
		"	if p != nil {\n		p.calls", "	if unknown {\n		p.calls",
		"internal/quota", "TestAParkedTenantsCallsKeepTheirOrder",
	},

	// Idempotency keys.
	{
		"keys are not looked up", "internal/quota/batch.go",
		`keyed := r.Key != "" && !r.DryRun`, "keyed := false",
		"internal/quota", "TestARetryIsChargedOnceAndGetsTheSameAnswer",
	},
	{
		"keys are kept in a second transaction", "internal/quota/batch.go",
		`	queueWriteKeys(&queries, b.keys)
	b.queueCrossings(&queries) // behind the entries, some of which may be of the batch
`,
		`	b.queueCrossings(&queries)
	if err := b.runner.session.Commit(ctx, &queries, b.runner.engine.config.commitTimeout); err != nil {
		return err
	}
	queries = pgx.Batch{}
	pg.Begin(&queries)
	queueWriteKeys(&queries, b.keys)
`,
		"internal/quota", "TestAnUnknownOutcomeIsSettledByItsKey",
	},
	{
		"a key with another body replays", "internal/quota/batch.go",
		"kept.requestHash != c.fingerprint()", "len(kept.answer) == 0",
		"internal/quota", "TestARetryIsChargedOnceAndGetsTheSameAnswer",
	},
	{
		"a key is that of any tenant", "internal/quota/store.go",
		"where i.tenant_id = k.tenant_id and i.key = k.key", "where i.key = k.key",
		"internal/quota", "TestARetryIsChargedOnceAndGetsTheSameAnswer",
	},

	// The decision.
	{
		"the last unit of a limit is denied", "internal/quota/algorithm.go",
		"used+held+cost <= limit", "used+held+cost < limit",
		"internal/quota", "TestADenialChangesNothing",
	},
	{
		"one unit too many is allowed", "internal/quota/algorithm.go",
		"used+held+cost <= limit", "used+held+cost <= limit+1",
		"internal/quota", "TestExactlyTheLimitIsAdmittedUnderAStorm",
	},
	{
		"a denial takes", "internal/quota/book.go",
		"if v.decision.Allowed && !r.DryRun {", "if !r.DryRun {",
		"internal/quota", "TestADenialChangesNothing",
	},
	{
		"what is held can be spent", "internal/quota/decide.go",
		"held = e.limitsHeld[i]", "held = 0",
		"internal/quota", "TestAHeldUnitIsNotSpendableTwiceAndSettlesAsTheTruth",
	},
	{
		"running totals may overflow", "internal/quota/decide.go",
		"if have+c.cost > catalog.UnitsMax {", "if have < 0 {",
		"internal/quota", "TestWhatCannotBeDecidedNamesItsField",
	},
	{
		"a tenant's time falls back with the clock", "internal/quota/batch_read.go",
		"return max(b.clock.At.UnixMicro(), t.account.LastAt.UnixMicro())", "return b.clock.At.UnixMicro()",
		"internal/quota", "TestTimeNeverRunsBackwardsForATenant",
	},
	{
		"a changed plan is not noticed", "internal/quota/batch_read.go",
		"stale := b.runner.anew || b.clock.CatalogVersion != b.snapshot.Version", "stale := b.runner.anew",
		"internal/quota", "TestANewPlanVersionHoldsForTheNextCallOnEveryInstance",
	},
	{
		"a sliding window is closed at both ends", "internal/quota/sliding_log.go",
		"nowMicros - l.windowMicros + 1", "nowMicros - l.windowMicros",
		"internal/quota", "TestSlidingLogReadsTheFirstMicrosecondInside",
	},
	{
		"a bucket refills in floating point", "internal/quota/bucket.go",
		"	whole, rest, _ := gained.floorDiv(uint64(b.refillMicros))\n",
		`	refilled := (float64(at-s.AtMicros)*float64(b.refillUnits) + float64(b.remainder(s))) / float64(b.refillMicros)
	whole := uint64(refilled)
	rest := uint64((refilled - float64(whole)) * float64(b.refillMicros))
`,
		"internal/quota", "TestBucketKeepsFractionsForEver",
	},
	{
		"a level is carried to another plan without the time that passed", "internal/quota/carry.go",
		"s = newBucket(limitUnits(*is.limit), levelRate(*is.limit)).level(View{NowMicros: until, State: s})", "s.AtMicros = until",
		"internal/quota", "TestALevelRefillsAtTheRateOfItsTime",
	},
	{
		"waits are rounded down to milliseconds", "internal/quota/decide.go",
		"return (max(0, micros) + 999) / 1000", "return max(0, micros) / 1000",
		"internal/quota", "TestWaitsAreExact",
	},
	{
		"Retry-After is rounded down to seconds", "internal/api/ratelimit.go",
		"return (ms-1)/1000 + 1", "return ms / 1000",
		"internal/api", "TestRetryAfterIsWholeSecondsRoundedUp",
	},

	// What an instance remembers.
	{
		"a memory is used whatever was entered since", "internal/quota/memory.go",
		"m.seq == t.account.Seq && m.headHash == t.account.HeadHash {", "m.seq <= t.account.Seq {",
		"internal/quota", "TestAMemoryThatNoLongerHoldsIsNotUsed",
	},
	{
		"a new counter is taken for one that is there", "internal/quota/batch_read.go",
		"slot.stored, slot.sealed = t.Stored, levels", "slot.stored, slot.sealed = true, levels",
		"internal/quota", "TestAHoldIsResolvedOnce",
	},
	{
		"the edge of a window is remembered for too long", "internal/quota/memory.go",
		"edges[i].AtMicros > known[i]", "edges[i].AtMicros < 0",
		"internal/quota", "TestADeniedKeyMayBeTriedAgain",
	},
	{
		"what is counted is remembered for a clock that fell back", "internal/quota/memory.go",
		"nowMicros >= m.atMicros && ", "",
		"internal/quota", "TestAClockThatFallsBackFindsWhatItsWindowHolds",
	},
	{
		"what was entered as of before now is remembered as of now", "internal/quota/memory.go",
		"t.book == nil || t.unsteady || t.book.beganMicros > 0", "t.book == nil",
		"internal/quota", "TestAnExpiryLeavesItsWindowFromItsOwnInstant",
	},
	{
		"a memory is told by its number alone", "internal/quota/memory.go",
		" && m.headHash == t.account.HeadHash {", " {",
		"internal/quota", "TestAMemoryIsOfOneEntryNotOfItsNumber",
	},
	{
		"a denial is remembered for a key", "internal/quota/exhaustion.go",
		`r.Key == "" && `, "",
		"internal/quota", "TestOnlyTheSameQuestionWithoutAKeyIsAnsweredFromMemory",
	},
	{
		"a denial is remembered for a minute", "internal/quota/exhaustion.go",
		"stands = exhaustionMax", "stands = time.Minute",
		"internal/quota", "TestARaiseByAnotherInstanceIsSeenWithinASecond",
	},
	{
		"what is given back leaves remembered denials", "internal/quota/exhaustion.go",
		"			x.forget(res.work.name)\n", "",
		"internal/quota", "TestOwnChangesEndRememberedDenialsAtOnce",
	},

	// Holds, reversals, grants.
	{
		"holds end only when the background finds them", "internal/quota/batch.go",
		"	if t.book == nil {\n		return nil\n",
		"	if t.book == nil || !slices.ContainsFunc(t.calls, func(c *call) bool { return c.stand }) {\n		return nil\n",
		"internal/quota", "TestAnExpiredHoldGivesBackAndALateSettleSaysSo",
	},
	{
		"a hold can be settled twice", "internal/quota/hold.go",
		"case h.state == HoldOpen, h.state == HoldExpired && r.Kind == ledger.KindSettle:",
		"case h.state == HoldOpen, r.Kind == ledger.KindSettle:",
		"internal/quota", "TestAHoldIsResolvedOnce",
	},
	{
		"an entry can be given back twice", "internal/quota/store_hold.go",
		"coalesce(r.units, 0), h.awaited is not null", "0::bigint, h.awaited is not null",
		"internal/api", "TestNeverMoreIsGivenBackThanWasUsed",
	},
	{
		"a grant of an outage is entered under a new key each time", "internal/quota/degraded_adjust.go",
		"key = kept.ownKey()", "key = grantKeyPrefix + uuid.NewString()",
		"internal/quota", "TestGrantsBecomeEntriesExactlyOnceThroughCrashes",
	},

	// The ledger.
	{
		"the hash leaves a column out", "internal/ledger/entry.go",
		"	b = appendInt(b, e.Held)\n", "",
		"internal/ledger", "TestChangingAFieldChangesTheHash",
	},
	{
		"a page skips an entry", "internal/ledger/store_entries.go",
		"l.first = max(l.first, q.AfterSeq+1)", "l.first = max(l.first, q.AfterSeq+2)",
		"internal/ledger", "TestFiltersAndPagesSelectWhatAScanSelects",
	},
	{
		"an export skips an entry between two of its reads", "internal/ledger/store_entries.go",
		"l.first = seq + 1", "l.first = seq + 2",
		"internal/api", "TestAnExportIsTheWholeList",
	},
	{
		"pages are cut in the order of request ids", "internal/ledger/store_entries.go",
		"  order by e.seq\n  limit $11", "  order by e.request_id\n  limit $11",
		"internal/ledger", "TestFiltersAndPagesSelectWhatAScanSelects",
	},
	{
		"the past is read before it is settled", "internal/ledger/store_settle.go",
		"for key share of a", "",
		"internal/ledger", "TestThePastIsSettledBeforeItIsRead",
	},

	// Tenants and keys.
	{
		"a hold of another tenant can be settled", "internal/quota/store_hold.go",
		"union all` + holdColumns + `\nfrom unnest($2::bigint[], $3::uuid[]) as k(tenant_id, hold_id)\n" +
			"cross join lateral (\n  select h.*\n  from quotad.hold h\n  where h.tenant_id = k.tenant_id and h.hold_id = k.hold_id\n",
		"union all\nselect k.tenant_id, h.hold_id, h.state, h.subject_id, coalesce(s.subject, ''), s.digest, m.meters, h.meter_ids, h.units,\n" +
			"  h.expired_seq, h.charged, h.first_seq, h.started_at, h.expires_at, h.resolved_at, h.resolution_hash, h.answer\nfrom unnest($2::bigint[], $3::uuid[]) as k(tenant_id, hold_id)\n" +
			"cross join lateral (\n  select h.*\n  from quotad.hold h\n  where h.hold_id = k.hold_id\n",
		"internal/api", "TestIDsOfAnotherTenantAreThoseOfNothing",
	},
	{
		"a hold of another tenant can be read", "internal/quota/store_hold_list.go",
		"where h.tenant_id = $1 and h.hold_id = $2", "where $1 > 0 and h.hold_id = $2",
		"internal/api", "TestIDsOfAnotherTenantAreThoseOfNothing",
	},
	{
		"a batch may name any tenant", "internal/api/batch.go",
		"items[i].err == nil && !c.key.MayActFor(items[i].request.Tenant)", "items[i].err == nil && c.key.ID == \"\"",
		"internal/api", "TestBatchItemsOfForeignTenantsAreForbidden",
	},
	{
		"a route asks for less than its scope", "internal/api/routes.go",
		`"/v1/tenants/{tenant}/denials", catalog.KeyAudit`, `"/v1/tenants/{tenant}/denials", catalog.KeyRead`,
		"internal/api", "TestOpenAPIDocument",
	},
	{
		"a scope is not checked", "internal/api/auth.go",
		"if !key.Allows(rt.Scope) {", "if !key.Allows(rt.Scope) && rt.Tenancy != TenancyList {",
		"internal/api", "TestEveryRouteAgainstEveryKey",
	},
}
