// Reads quotad's answers with the libraries that its customers use, and fails where one
// of them understands something else than the answer says. The Go test that runs this
// starts the servers: CLIENTS is {dialect: url}, KEYS is {dialect: key that may decide}.
import assert from 'node:assert/strict'
import OpenAI from 'openai'
import { parseRateLimit } from 'ratelimit-header-parser'

const servers = JSON.parse(process.env.CLIENTS)
const keys = JSON.parse(process.env.KEYS)

const consume = (dialect, cost) =>
  fetch(servers[dialect] + '/v1/consume', {
    method: 'POST',
    headers: { Authorization: `Bearer ${keys[dialect]}`, 'Content-Type': 'application/json' },
    body: JSON.stringify({ tenant: 'acme', meter: 'api.calls', cost }),
  })

// tightest is the limit of an answer with least left, as its body has it.
const tightest = (decision) =>
  decision.limits.filter((l) => l.mode === 'enforce').reduce((a, b) => (b.remaining < a.remaining ? b : a))

// Both the parser and this script round to whole seconds.
const near = (date, seconds, what) => {
  const off = Math.abs(date.getTime() / 1000 - seconds)
  assert.ok(off <= 2, `${what} is ${off} s off`)
}

for (const dialect of ['delta', 'epoch', 'draft7']) {
  for (const cost of [2, 3, 1]) {
    const response = await consume(dialect, cost)
    const decision = await response.clone().json()
    assert.equal(response.status, cost === 1 ? 429 : 200, `${dialect}: ${JSON.stringify(decision)}`)
    const limit = tightest(decision)
    const got = parseRateLimit(response)
    assert.equal(got.limit, limit.limit, `${dialect}: limit`)
    assert.equal(got.remaining, limit.remaining, `${dialect}: remaining`)
    assert.equal(got.used, limit.limit - limit.remaining, `${dialect}: used`)
    const from = dialect === 'epoch' ? Date.parse(decision.decided_at) : Date.now()
    near(got.reset, (from + limit.reset_after_ms) / 1000, `${dialect}: reset`)
  }
}
console.log('ratelimit-header-parser understands delta, epoch and draft-7')

const options = { apiKey: keys.openai, baseURL: servers.openai + '/v1' }
const ask = (client) =>
  client.chat.completions.create({ model: 'small', messages: [{ role: 'user', content: 'hello' }] }).withResponse()
const patient = new OpenAI({ ...options, maxRetries: 2 })
for (let left = 4; left >= 0; left--) {
  const { response } = await ask(patient)
  assert.equal(response.headers.get('x-ratelimit-limit-requests'), '5')
  assert.equal(response.headers.get('x-ratelimit-remaining-requests'), String(left))
  assert.match(response.headers.get('x-ratelimit-reset-requests'), /^([0-9.]+(h|m|s|ms))+$/)
  assert.equal(response.headers.get('x-ratelimit-limit-tokens'), '1000')
}
const denied = await ask(new OpenAI({ ...options, maxRetries: 0 })).then(
  () => assert.fail('the sixth call at once was allowed'),
  (error) => error,
)
assert.ok(denied instanceof OpenAI.RateLimitError, `a denial is ${denied.constructor.name}`)
assert.equal(denied.headers.get('x-ratelimit-remaining-requests'), '0')
const wait = Number(denied.headers.get('retry-after-ms'))
assert.ok(wait > 0 && wait <= 500, `retry-after-ms is ${wait}`)
const began = Date.now()
await ask(patient) // waits as it was told, and passes
assert.ok(Date.now() - began < 5000, 'the client did not wait by retry-after-ms')
console.log('openai waits as it is told and then passes')
