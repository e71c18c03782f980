package api

// The words of the document. A name means the same wherever it stands; where a type
// has to say more, its entry is "Type.name". Names of types describe the types.

const documentText = "quotad answers one question: may this tenant spend this now? The decision, the counter and the audit entry are one commit. " +
	"Amounts are whole numbers from 0 to 999999999999999; instants are RFC 3339 in UTC with microseconds; a field that carries a unit says so in its name. " +
	"Unknown fields and parameters are refused. Errors are problems (RFC 9457) with a stable code."

const consumeText = "Decides and, if it is allowed, charges, in one commit. Give meter with cost or pools, or up to 16 charges, which are admitted all or none. " +
	"With an Idempotency-Key a retry gets the same answer and is not charged again, for 35 days; the same key with another request is 422. " +
	"A denial changes nothing: the same key may be tried again."

const batchText = "Up to 1,000 requests, each decided as if it had been sent alone, those of one tenant in their order; they are no unit. " +
	"Each result has the status and the body that the request alone would have got."

const holdText = "Decides as consume does, and sets the cost aside instead of using it: until the hold is settled, released or expires it is counted as held, and nobody else can have it. " +
	"Give meter with cost or pools, or up to 16 charges, which are set aside all or none. A hold without ttl_ms lasts a minute. A tenant has at most 1,000 open holds; one more is denied with too_many_holds. " +
	"A limit of concurrency counts holds, each one place; nothing of a meter with a leaky bucket can be held."

const settleText = "Records the actual cost, now, and ends the hold. It cannot be denied: what happened is recorded, whether less, equal or more than was set aside. " +
	"Give exactly one of cost, pools and charges; 0 is said, never assumed. meter may be left out where the hold is on one; otherwise each meter of the hold is named. " +
	"Of a hold that has expired it is recorded all the same, and late says so. Repeating it gives the same answer; another cost is 409."

const releaseText = "Ends the hold; nothing of it is used. Repeating it gives the same answer; of a hold that has ended otherwise it is 409."

const extendText = "The hold then ends ttl_ms from now, a minute if absent, and at most 24 hours from its start. Of a hold that has ended it is 409."

const holdsText = "Without state: the open ones, in the order in which they end. With another state the newest first; a page then looks at a bounded number of holds, " +
	"so it may hold few, or none, and still have a next_cursor. One whose time is over is expired, whether or not the ledger has that yet."

const reverseText = "Gives back units of an earlier consume, settle or adjust: all that is left of it, or so many. Windows count them no more, from the instant at which they were used; " +
	"buckets get them back now, up to their capacity. Never more than the entry used is given back, whatever keys are used. It needs scope admin: units are money. " +
	"What the expiry of a hold charged can be given back once the hold cannot be settled any more."

const entriesText = "A page looks at a bounded range of numbers, so a page of a narrow filter may hold few entries, or none, and still have a next_cursor. " +
	"As CSV or NDJSON, by format or by Accept, all that the filters select is streamed; a stream that cannot go on is broken off without its end."

const usageText = "From running totals: what a bucket costs to read does not depend on how much is in it, and all of an answer is of one instant, final up to now. " +
	"Without from and to: the tenant's month up to now. The buckets at the ends are cut to the range. Without tz they follow the tenant's own calendar, " +
	"its billing anchor included; with tz months begin on the first; a changed zone of the tenant begins with the next bucket. " +
	"A reversal is booked when it is given, so that buckets and totals can be below 0. At most 1,500 buckets a series, and 20,000 on a page of series."

const explainText = "Names the plan version, and for each limit what it had used just before, counted again from the entries, and the sum that was compared. " +
	"Give seq, the number of an entry, or request_id, which also finds denials that are kept. An allowed request is found by its id within 2 minutes of the instant that the id holds."

const denialsText = "The newest 1,000 denials of a tenant are kept, for 35 days, with the whole answer. They are written in the background within a second, " +
	"by the asked instance at once. A crash may lose the last second; nothing is billed by them. " +
	"Of a burst only some are kept: between two writes an instance keeps the newest 100 of a tenant, and 5,000 in all. The counts have the others, too."

const denialCountsText = "Without limit_name each denied request counts once. With the name of a limit: the requests that this limit denied; " +
	"with *: every limit's count beside the whole."

const settingsText = "default_plan is the plan that an unknown tenant gets: its first consume, not a dry run, creates it and is decided under that plan. " +
	"What is left out becomes what a new database has: no default plan, and 600 new tenants a minute."

const changesText = "Every change of meters, plans, tenants, settings and keys since the beginning, the newest first unless order is asc. " +
	"Tenants that the default plan has made are by default_plan. No secret is ever in it. A key that is bound to a tenant sees the changes of that tenant."

var tags = []object{
	{"name": "decide", "description": "Ask before a call."},
	{"name": "hold", "description": "Set an estimate aside, then record the truth."},
	{"name": "read", "description": "What is used and what is left."},
	{"name": "audit", "description": "Every request behind a figure."},
	{"name": "configure", "description": "Meters, plans, tenants and keys. Every change is kept with who, before and after."},
	{"name": "operate", "description": "Health and metrics. These need no key."},
}

// optionalFields are fields that a type's own encoder may leave out although its tags
// do not say so.
var optionalFields = map[string][]string{
	"LimitResult": {"limit", "remaining", "reset_after_ms"},
	"KeyRequest":  {"env", "name", "tenant"},
}

var glossary = map[string]string{
	// Types.
	"ConsumeRequest":   "A request to spend: meter with cost or pools, or charges.",
	"ChargeRequest":    "One meter and what to spend on it: a cost, or amounts by pool.",
	"BatchRequest":     "Requests that are answered in their order.",
	"BatchResult":      "What an item would have got alone.",
	"HoldRequest":      "A request to set aside: meter with cost or pools, or charges.",
	"HoldBatchRequest": "Requests to set aside, which are answered in their order.",
	"SettleRequest":    "What a hold came to: exactly one of cost, pools and charges.",
	"ReleaseRequest":   "Whose hold it is.",
	"ExtendRequest":    "Whose hold it is, and when it is to end.",
	"ReversalRequest":  "The entry to give back from, and how many units.",
	"Decision":         "The answer to a request, with what every limit on its meters said.",
	"DenialProblem":    "A denial: a problem whose members are joined by those of the decision.",
	"Problem":          "What is wrong (RFC 9457).",
	"Fault":            "One field that breaks a rule.",
	"LimitResult":      "What one limit said: after the charge if it was allowed, as things stand if it was denied or a dry run.",
	"Receipt":          "The entries of an allowed request: first_seq to seq, and the hash of the last one, which covers all before it.",
	"Entry":            "One row of the ledger. Entries are never changed.",
	"Denial":           "A request that was denied, with the answer it got.",
	"DenialCount":      "How many requests were denied in one minute.",

	// Requests and decisions.
	"ttl_ms":                "Milliseconds from now until the hold ends, 1 to 86400000; 60000 if absent.",
	"SettleRequest.meter":   "The meter of the cost; may be left out where the hold is on one.",
	"SettleRequest.cost":    "Units of the meter that the hold came to; 0 if nothing.",
	"SettleRequest.charges": "What each meter of the hold came to; every one is named.",
	"ReversalRequest.seq":   "The number of the entry to give back from.",
	"ReversalRequest.units": "How many units to give back; absent for all that are left.",
	"tenant":                "The paying customer's id: UTF-8 of 1 to 256 bytes without control characters.",
	"Key.tenant":            "The one tenant that the key may act for; absent for every tenant.",
	"subject":               "A user, key or address under the tenant; absent for none.",
	"meter":                 "The name of what is counted.",
	"cost":                  "Units of the meter; 1 if neither cost nor pools are given. 0 fits wherever the limit is not blocked.",
	"pools":                 "Amounts by pool; the meter's weights make one cost of them, rounded up once.",
	"charges":               "What is spent, per meter. Charges on one meter are summed.",
	"dims":                  "Dimensions of the request, kept with its entries: at most 16, names of 1 to 64 bytes, values of at most 256.",
	"dry_run":               "Decide and say so, change nothing.",
	"idempotency_key":       "What makes a retry safe: 1 to 255 bytes without control characters.",
	"items":                 "The requests, at most 1,000.",
	"results":               "One result per item, in their order.",
	"BatchResult.status":    "The HTTP status that the item alone would have got.",
	"replayed":              "True if this is the answer that an earlier request with the same key got.",
	"body":                  "The body that the item alone would have got.",
	"allowed":               "Whether the request may be carried out. If true, the ledger has it, or will have it if degraded.",
	"reason":                "Why it was denied, the one that stands furthest from passing.",
	"request_id":            "The id of the decision, a version 7 UUID. Its entries carry it.",
	"Problem.request_id":    "The id of this answer; our log has it beside the cause.",
	"decided_at":            "The instant of the decision, by the database's clock.",
	"remaining":             "For a limit: this cost fits now and one more does not. For a decision: the smallest over its enforcing limits; absent if none bounds.",
	"limits":                "What every limit said, in the plan's order.",
	"PlanSpec.limits":       "The limits, in their order; an empty list allows nothing.",
	"approximate":           "At an instant of the past, where the level was not full for a thousand entries: one unit less may really be used, and one more remain.",
	"delay_ms":              "Milliseconds after which to carry the request out, where a leaky bucket shapes.",
	"retry_after_ms":        "Milliseconds to wait: the same request then passes if there is no other traffic. Absent if waiting never helps.",
	"receipt":               "Proof of what was recorded: keep it to hold the ledger to it.",
	"first_seq":             "The number of the request's first entry.",
	"violated-policies":     "The names of the limits that denied.",
	"client":                "Where the request came from, instead of a subject: the subject is then its address, or the prefix it is in.",
	"peer":                  "The address at the other end of the connection, with or without a port.",
	"forwarded_for":         "The values of the header X-Forwarded-For, in their order. They count as far as proxies that the service trusts wrote them.",
	"remembered":            "True if the same request was denied at decided_at, less than a second ago, and this is that answer with its waits as they are now.",
	"DegradedLimit":         "What one enforcing limit said while the database was away.",

	// Limits.
	"name":                  "The name: [a-z0-9][a-z0-9._-]{0,63}; a tenant's is its id.",
	"Key.name":              "What its maker calls it.",
	"NewKey.name":           "What its maker calls it.",
	"KeyRequest.name":       "What you call it.",
	"algorithm":             "How the limit counts.",
	"scope":                 "Whether it counts the whole tenant, or each subject apart.",
	"mode":                  "enforce denies; shadow counts and reports would_deny, never denies; off is not looked at.",
	"limit":                 "Units; the capacity, burst or queue where the algorithm has one. 0 blocks. Absent if unlimited.",
	"LimitSpec.limit":       "Units per window, for the windowed algorithms. 0 blocks.",
	"unlimited":             "Counts and reports, never denies.",
	"used":                  "Units that count against the limit now.",
	"held":                  "Units that are set aside now.",
	"Entry.held":            "Change of what is set aside, in units.",
	"violated":              "True if this limit denied the request.",
	"would_deny":            "True if this limit would have denied, were it not in shadow mode.",
	"override":              "Why the tenant has other numbers than the plan, and until when; absent where it has the plan's.",
	"OverrideResult":        "A dated override that a limit has its numbers by.",
	"until":                 "The instant from which the plan's own numbers hold again.",
	"OverrideResult.reason": "The reason that was given for it.",
	"reset_after_ms":        "Milliseconds until nothing of it is used, with no further traffic. Absent if it never resets.",
	"reset_at":              "When nothing of it is used any more, with no further traffic, to the microsecond. Absent if nothing is used, or if it never resets.",
	"window":                "A duration such as 15m or 1h, or for fixed_window hour, day, week, month or year in the tenant's calendar.",
	"capacity":              "Units a token bucket holds.",
	"refill":                "Units per duration that a token bucket gets back, such as 2000/1s.",
	"rate":                  "Units per duration, such as 6/1m.",
	"burst":                 "Units that GCRA admits at once.",
	"queue":                 "Units that may wait in a leaky bucket.",
	"on_error":              "What happens when the database is away: deny (503), allow, or local, which grants from a copy in each instance. deny if absent.",
	"local_share":           "Of on_error local: the percentage of the limit's numbers that one instance may grant by itself, 1 to 100.",

	// Answers while the database is away.
	"degraded":                "True if the database was away and on_error of the limits decided; then there is no receipt and limits is empty.",
	"degraded_limits":         "What each enforcing limit said while the database was away.",
	"DegradedLimit.on_error":  "What the limit does when the database is away.",
	"DegradedLimit.limit":     "This instance's share of the limit, in units; local only.",
	"DegradedLimit.used":      "Units that this instance has granted by itself and that count now; local only.",
	"DegradedLimit.remaining": "Units that this instance may still grant by itself; local only.",

	// Ledger.
	"entries":         "The entries, in the order asked for.",
	"next_cursor":     "Where the next page begins; absent on the last one.",
	"seq":             "The number of the entry: 1, 2, 3 … per tenant without gaps.",
	"Receipt.seq":     "The number of the request's last entry.",
	"at":              "The instant, by the database's clock.",
	"effective_at":    "The instant that the units count from; of hold and extend, when the hold ends if nothing resolves it.",
	"kind":            "What the entry records: consume is usage that was decided; hold sets aside, extend moves its end, settle is what it came to, release and expire end it; reverse gives units back; adjust is usage recorded afterwards; grant is reserved, and no call makes one.",
	"units":           "Change of usage, in the meter's units.",
	"total":           "Units of the tenant's meter up to and including this entry.",
	"subject_total":   "The same of this subject alone.",
	"batch_id":        "The transaction that wrote the entry.",
	"ref_seq":         "The entry that this one answers: of the hold, or the one that is given back from.",
	"override_set_id": "The tenant's overrides of the plan that it was decided under; absent for none.",
	"limits_held":     "What was set aside of each of them just before; absent where nothing was.",
	"plan":            "The name of a plan.",
	"plan_version":    "The version of the plan that it was decided under.",
	"limits_used":     "What each limit of the plan version on this meter had used just before, in the plan's order.",
	"hash":            "SHA-256 over the previous entry's hash, this entry and the rules it was decided under: changing one breaks all after it.",

	// Denials.
	"denials":             "The denials, the newest first.",
	"DenialCount.denials": "How many.",
	"limit_names":         "The limits that denied; empty where the reason is none of a limit.",
	"after_seq":           "The tenant's newest entry at that instant; 0 if it had none.",
	"decision":            "The answer as it was sent.",
	"counts":              "The counts, the newest minute first.",
	"minute":              "The minute that is counted, by its start.",
	"limit_name":          "The limit that denied; absent where whole requests are counted.",

	// Usage.
	"Usage":             "A meter's usage in a range, cut into buckets.",
	"UsageSeries":       "The usage of the whole tenant, or of one subject.",
	"UsageBucket":       "The usage from one instant up to another.",
	"bucket":            "The size of the buckets.",
	"tz":                "The time zone that days, weeks and months are of: the one asked for, or the tenant's present one.",
	"from":              "From this instant on.",
	"to":                "Before this instant.",
	"series":            "One series, or one per subject that used the meter in the range or since, in the order in which they were first seen.",
	"Usage.total":       "Units in the range: of the tenant, or of the one subject that was asked for.",
	"UsageSeries.total": "The sum of its buckets.",
	"buckets":           "The buckets, without a gap.",
	"UsageBucket.units": "Units used in the bucket.",

	// Holds and reversals.
	"hold":               "The hold, as it is now.",
	"HoldResult":         "A hold.",
	"HoldResult.id":      "The hold's id: that of the request that made it.",
	"state":              "open, settled, released or expired.",
	"expires_at":         "When it ends if nothing resolves it.",
	"late":               "True if it was settled after it had expired.",
	"holds":              "The holds.",
	"HoldView":           "A hold as it stands, and what became of it.",
	"HoldView.id":        "The hold's id: that of the request that made it.",
	"HoldView.charges":   "What it sets, or had set, aside of each meter.",
	"HoldCharge":         "What a hold sets, or had set, aside of one meter.",
	"HoldCharge.held":    "Units set aside, until the hold has ended.",
	"HoldCharge.cost":    "Units that it came to: what it was settled with, or what its expiry charged; absent until the ledger has its end.",
	"HoldView.first_seq": "The number of its first entry; it has one per charge, in their order.",
	"started_at":         "When it was made.",
	"resolved_at":        "When it was settled, released or expired; absent until the ledger has that.",
	"age_ms":             "Milliseconds from its start until its end, or until now.",
	"reversal":           "What was given back.",
	"Reversal":           "What was given back of an entry.",
	"Reversal.seq":       "The entry it was of.",
	"Reversal.units":     "How many units.",
	"left":               "Units of the entry that are still used.",
	"Decision.kind":      "What was asked for; absent for consume.",
	"Explanation.kind":   "What was asked for. Consume and hold are decided by the limits; the others are recorded whatever they say.",
	"Explain.kind":       "What was asked for. Consume and hold are decided by the limits; the others are recorded whatever they say.",
	"ChargeResult.held":  "Units that the hold had set aside.",

	// Previews.
	"preview":              "What a dry run would mean for tenants right now.",
	"Preview":              "What a change would mean for tenants right now. Limits that count per subject are left out.",
	"Preview.tenants":      "Those that would see a difference, those that would be denied first; at most 100.",
	"tenants_affected":     "Tenants that the change is about: changed themselves, or on a plan that is.",
	"tenants_looked_at":    "How many of them were looked at: at most 10,000.",
	"tenants_differing":    "How many of these would see a difference.",
	"tenants_denied":       "How many of these would be denied a call of cost 1, or a hold, that passes now.",
	"TenantPreview":        "What would change for one tenant.",
	"TenantPreview.limits": "The limits that would differ.",
	"TenantPreview.denied": "Whether a call of cost 1, or a hold, would be denied that passes now.",
	"plan_before":          "The plan in force.",
	"plan_after":           "The plan that would be.",
	"LimitPreview":         "What would change of one limit. What a limit has not is absent: it is not in the plan, or unlimited.",
	"LimitPreview.denied":  "Whether it would deny a cost of 1, or a hold if it is of concurrency, and does not now.",
	"limit_before":         "The limit's number, in units.",
	"limit_after":          "The number it would have.",
	"remaining_before":     "What is left of it.",
	"remaining_after":      "What would be left of it.",

	// Explanations.
	"Explain":               "A decision taken apart.",
	"LimitExplanation":      "What one limit compared.",
	"EdgeExplain":           "The running total just before a window's first instant.",
	"Explanation.entries":   "The entries that an allowed request made.",
	"Explain.entries":       "The entries that an allowed request made.",
	"Explanation.after_seq": "The newest entry before it; 0 for none.",
	"consistent":            "Whether everything counted again is what was said then.",
	"text":                  "The same in words.",
	"fits":                  "Whether used + held + cost is at most the limit.",
	"counted":               "What the entries before it had used, counted again; absent for a level that was not full within the thousand entries before: they tell it only to a unit.",
	"total_before":          "The meter's running total just before the request.",
	"edges":                 "The instants from which the window counts, and the running total just before each: the difference was used.",
	"EdgeExplain.total":     "The running total just before that instant.",

	// Configuration.
	"meters":              "The meters, by name.",
	"plans":               "The plans, by name.",
	"tenants":             "The tenants, by name.",
	"keys":                "The keys, by id.",
	"unit":                "What one unit is, such as call or token.",
	"on_expiry":           "What becomes of a hold that nobody resolves in time: release gives it up, charge uses all of it.",
	"weights":             "What one of each pool costs: a number or a quoted decimal with at most 6 decimals.",
	"version":             "The version of the plan: each change is a new one.",
	"timezone":            "The IANA time zone of calendar windows; UTC if absent on a new tenant, as it was on another.",
	"billing_anchor":      "The day of the month that months begin on, 1 to 31, clamped; 1 if absent on a new tenant.",
	"Limits.status":       "Whether the tenant may spend: only if it is active has a limit anything remaining.",
	"Limits.plan":         "The tenant's plan.",
	"Limits.plan_version": "The version of the plan that was in force.",
	"TenantSpec.plan":     "The plan in force; in a request, the plan that is wanted.",
	"plan_from":           "When plan comes into force: now, or with the next_period, at the end of the tenant's billing month. now if absent. A new tenant gets its plan at once.",
	"next_plan":           "The plan that is in force from next_plan_at on. Absent if no other is to follow; leaving it out of a request ends a switch that is pending.",
	"next_plan_at":        "The instant, in RFC 3339, from which next_plan is the plan.",
	"overrides":           "Other numbers for limits of the plan, for a while. As they were if absent; none if empty. At most 16, of which no two overlap on one limit.",
	"OverrideSpec":        "Other numbers for one limit of a tenant's plan, from an instant until another. Where the plan has no such limit, it has no effect.",
	"OverrideSpec.name":   "The limit's name.",
	"OverrideSpec.limit":  "Units per window, or open holds. 0 blocks.",
	"OverrideSpec.from":   "From this instant on, in RFC 3339; at once if absent.",
	"OverrideSpec.until":  "Before this instant, in RFC 3339; then the plan's numbers hold again.",
	"OverrideSpec.reason": "Why, for whoever reads it: 1 to 256 bytes.",
	"TenantSpec.status":   "active may spend; suspended and closed may not. As it was if absent; active for a new tenant.",
	"created_at":          "When it was created.",
	"created_by":          "Who created it.",
	"revoked_at":          "When it was revoked; absent if it is good.",
	"revoked_by":          "Who revoked it.",
	"id":                  "The key's id: the third part of its token, no secret.",
	"Record":              "One change of the configuration.",
	"Record.id":           "The number of the change.",
	"Record.name":         "The name of the object; a key's is its id, that of the settings is global.",
	"by":                  "Who made it: key:<id>, cli:<user>, or default_plan.",
	"changes":             "The changes, in the order asked for.",
	"versions":            "The versions, the newest first.",
	"default_plan":        "The plan that an unknown tenant gets with its first consume; absent if it stays unknown.",
	"default_plan_rate":   "How many tenants the default plan makes a minute at most; 600 if absent. 0 makes none.",
	"env":                 "The environment that its token names: live if absent.",
	"scopes":              "What it may do: decide, read, audit, admin. admin includes the others.",
	"token":               "The key itself, to be sent as Authorization: Bearer. It is shown only here.",
	"object":              "The kind of thing: meter, plan, tenant, settings or key.",
	"outcome":             "What became of it: created, changed or unchanged.",
	"Problem.outcome":     "unknown if nobody can tell yet whether the request was carried out; the same Idempotency-Key settles it.",
	"differs":             "What is different now, a line each.",
	"before":              "As it was; null or absent if it was not there.",
	"after":               "As it is now; null or absent if it is not there.",
	"config_version":      "The version of the whole configuration after this.",

	// Problems and operations.
	"type":     "A URI that names the kind of problem.",
	"title":    "What is wrong in general.",
	"status":   "The HTTP status.",
	"detail":   "What is wrong this time, or the rule that is broken.",
	"code":     "The kind of problem for programs. Codes are stable.",
	"errors":   "Every field that breaks a rule.",
	"field":    "The field, as the caller wrote it: charges[1].cost.",
	"alive":    "True.",
	"ready":    "Whether this instance should get requests.",
	"faults":   "Why it is not ready.",
	"warnings": "What someone should look at.",
}

// A parameter is a parameter of a path, a query or a header; "operation.name" where
// one operation has its own meaning of the name.
type parameterWords struct {
	description string
	schema      object
}

var parameters = map[string]parameterWords{
	"tenant":     {"The tenant's id, percent-encoded.", object{"type": "string", "minLength": 1}},
	"hold":       {"The hold's id.", object{"type": "string", "format": "uuid"}},
	"seq":        {"The number of an entry.", object{"type": "integer", "minimum": 1}},
	"request_id": {"The id of a decision.", object{"type": "string", "format": "uuid"}},
	"meter":      {"The name of a meter.", object{"type": "string"}},
	"plan":       {"The name of a plan.", object{"type": "string"}},
	"key":        {"The key's id.", object{"type": "string"}},
	"version":    {"The number of a version.", object{"type": "integer", "minimum": 1}},

	"limit":              {"How many at most on this page.", object{"type": "integer", "minimum": 1, "maximum": pageMax, "default": pageDefault}},
	"cursor":             {"The next_cursor of the page before, of this same list.", object{"type": "string"}},
	"from":               {"From this instant on.", object{"type": "string", "format": "date-time"}},
	"to":                 {"Before this instant.", object{"type": "string", "format": "date-time"}},
	"format":             {"json is pages; csv and ndjson stream the whole list.", object{"type": "string", "enum": []string{"json", "csv", "ndjson"}, "default": "json"}},
	"entries.plan":       {"Only decided under this plan.", object{"type": "string"}},
	"entries.request_id": {"Only of this decision.", object{"type": "string", "format": "uuid"}},
	"order":              {"asc is by time, desc the newest first.", object{"type": "string", "enum": []string{"asc", "desc"}, "default": "asc"}},
	"subject":            {"Only of this subject.", object{"type": "string"}},
	"kind":               {"Only entries of this kind.", object{"type": "string", "enum": entryKinds}},
	"limit_name":         {"Only of this limit.", object{"type": "string"}},
	"reason":             {"Only with this reason.", object{"type": "string", "enum": reasons}},

	"holds.tenant":    {"The tenant whose holds they are.", object{"type": "string", "minLength": 1}},
	"holdView.tenant": {"The tenant whose hold it is.", object{"type": "string", "minLength": 1}},
	"state":           {"Only holds in this state.", object{"type": "string", "enum": holdStates, "default": "open"}},

	"usage.meter":   {"The meter.", object{"type": "string"}},
	"usage.from":    {"From this instant on; the start of the tenant's month if absent.", object{"type": "string", "format": "date-time"}},
	"usage.to":      {"Before this instant; now if absent.", object{"type": "string", "format": "date-time"}},
	"bucket":        {"The size of the buckets.", object{"type": "string", "enum": usageBuckets, "default": "day"}},
	"tz":            {"An IANA time zone; the tenant's own calendar if absent.", object{"type": "string"}},
	"group_by":      {"One series per subject.", object{"type": "string", "enum": []string{"subject"}}},
	"tenants.plan":  {"Only tenants that have this plan.", object{"type": "string"}},
	"status":        {"Only tenants with this status.", object{"type": "string", "enum": statuses}},
	"prefix":        {"Only tenants whose id begins with this.", object{"type": "string"}},
	"keys.tenant":   {"Only keys bound to this tenant.", object{"type": "string"}},
	"scope":         {"Only keys that name this scope; admin is not read.", object{"type": "string", "enum": keyScopes}},
	"revoked":       {"Only revoked keys, or only good ones.", object{"type": "string", "enum": []string{"true", "false"}}},
	"object":        {"Only changes of this kind of thing.", object{"type": "string", "enum": objects}},
	"name":          {"Only changes of the object of this name.", object{"type": "string"}},
	"by":            {"Only changes that this one made.", object{"type": "string"}},
	"changes.order": {"asc is by time, desc the newest first.", object{"type": "string", "enum": []string{"asc", "desc"}, "default": "desc"}},

	"limits.at":               {"As of this instant, everything decided at it included; now if absent. Not in the future, not before the tenant was made.", object{"type": "string", "format": "date-time"}},
	"limits.subject":          {"Limits that count per subject are included with one.", object{"type": "string"}},
	"denialCounts.limit_name": {"Only those that this limit denied; * for every limit.", object{"type": "string"}},
	"dry_run": {"With true nothing is changed: the answer says what would be, and for which tenants.", object{
		"type": "string", "enum": []string{"true", "false"}, "default": "false",
	}},
	"deny_status": {"The status of a denial: 200 for callers that prefer allowed: false.", object{
		"type": "string", "enum": []string{"200", "429"}, "default": "429",
	}},
	ifMatchHeader:        {"Only if the object has one of these tags, or with * if it is there.", object{"type": "string"}},
	ifNoneMatchHeader:    {"Only if the object has none of these tags, or with * if it is not there.", object{"type": "string"}},
	idempotencyKeyHeader: {"Makes a retry safe; bare or as a quoted string, 1 to 255 bytes.", object{"type": "string"}},
}

// A headerWords describes a header field of answers.
type headerWords struct {
	description string
	schema      object
	example     any
}

var headers = map[string]headerWords{
	"RateLimit":             {"What is left of each limit that can deny, and the seconds until it is whole again (structured field).", object{"type": "string"}, `"hourly";r=969;t=3600, "burst";r=99;t=1`},
	"RateLimit-Policy":      {"The limits that can deny: quota and seconds of the window.", object{"type": "string"}, `"hourly";q=1000;w=3600, "burst";q=100;w=10`},
	"X-RateLimit-Limit":     {"The tightest limit.", object{"type": "integer"}, 100},
	"X-RateLimit-Remaining": {"What is left of it.", object{"type": "integer"}, 99},
	"X-RateLimit-Reset":     {"Seconds until it is whole again.", object{"type": "integer"}, 1},
	"Quotad-Degraded":       {"allow or local: the on_error that answered while the database was away.", object{"type": "string", "enum": []string{"allow", "local"}}, "local"},
	"Retry-After":           {"Whole seconds to wait, rounded up, at least 1. Only where waiting helps.", object{"type": "integer", "minimum": 1}, 2},
	"ETag":                  {"Tells the states of the object apart; to be sent as If-Match or If-None-Match.", object{"type": "string"}, `"3f2a1c0b9d8e7f6a5b4c3d2e1f0a9b8c"`},
	"Cache-Control":         {"no-store.", object{"type": "string"}, "no-store"},
	"Idempotent-Replayed":   {"true if this is the answer that an earlier request with the same key got, or the resolution of a hold that is repeated.", object{"type": "string"}, "true"},
	"WWW-Authenticate":      {"How to authenticate.", object{"type": "string"}, challenge},
}
