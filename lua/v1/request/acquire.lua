-- acquire: exchanges a token for a permit, a lease and a slice of sub-requests.
-- Idempotent by op: a repeat returns the same reply. If g matches, every refusal parks the permit and mints, so
-- that no refusal loses a token.
-- Says: ok fence attempt policy entries tokens | empty tokens | busy tokens | paused tokens | stale | ended summary | gone
--   | alone | limited tokens | rated rates size has_waited | full
--   policy = now, born, lease_ms, attempts, backoff_min, backoff_max, priority, time_limit_ms, durable,
--   how many were not begun so far, the trace of the submission or "", and the fields that views
--   hide, if there are any; entries = {id, {"b", body}}
--   alone: shared, but a retry is due, and the death of its worker must be charged. Nothing has changed: the caller
--   asks again, for this retry alone
--   rated: the request has rates, and the caller has no allowance. Nothing has changed: the caller takes `size` from each
--   bucket of `rates` and asks again; has_waited = 1 if the request has waited for its turn at the buckets
--   limited: the allowance is 0; the request waits until the buckets have room
--   full: a key of the request has no room. The token waits for it, and goes to its lane again
-- @flags allow-oom
-- @include lib/request_keys.lua
local now = ARGV[1]  -- ms, "" = server time
local k = ARGV[2]  -- permit
local g = ARGV[3]  -- the token's generation
local op = ARGV[4]  -- hex; 128 random bits of this call
local worker = ARGV[5]  -- host:port
local started = ARGV[6]  -- ms; differs after a restart of the worker
local count = tonumber(ARGV[7])  -- the most sub-requests of the slice, 1..1000
local shared = ARGV[8]  -- "1" = its holder has several leases: if the holder dies, no attempt is charged
local allowance = ARGV[9]  -- "" = none was taken; else how many sub-requests the request's rates allow now
local wait = ARGV[10]  -- ms until the rates allow some, if the allowance is 0
local token = ARGV[11]  -- as it was popped, if it names keys; else ""
-- @include lib/core.lua
-- @include lib/state.lua
-- @include lib/lease.lua

local refused = acquire_error(count) or allowance_error(allowance, wait)
if refused then
  return refused
end
local state, reply = load_unfinished()
reply = reply or acquire(state, now_ms(now),
  {k = k, g = g, op = op, worker = worker, started = started, count = count, shared = shared,
    allowance = tonumber(allowance), wait = tonumber(wait)})
if token ~= "" and is_useless(reply[1]) then
  local queue = redis.call("HGET", request, "queue")
  if queue then  -- else the auditor gives it up
    drop_token("{" .. queue .. "}", token)
  end
end
return reply
