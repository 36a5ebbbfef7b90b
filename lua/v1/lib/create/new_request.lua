-- How a request begins, from the arguments of enqueue.
-- @include lib/core/shards.lua
local function new_state(now)
  return {state = "active", limit = limit, priority = priority, attempts = attempts, backoff_min = backoff_min,
    backoff_max = backoff_max, lease_ms = lease_ms, retain_ms = retain_ms, time_limit_ms = time_limit_ms,
    durable = durable, deadline = deadline_ms > 0 and now + deadline_ms or 0, born = now, seq = 0, queued = 0, high = 0,
    fresh = 0, total = 0, done = 0, dead = 0, open = open_ms > 0 and 1 or 0, few = 0, max_body = 0, last_ms = 0,
    sleep_due = 0, sleeper = "", free = "", held = 0, has_no_retries = true, shards = shards}
end

local function store_bodies(state, now)
  -- Keys whose hash is gone belong to no request: they may expire soon, or hold another life's results.
  if redis.call("EXISTS", stream, counter, permits, leases, retries, results, dead, few) > 0 then
    redis.call("UNLINK", stream, counter, permits, leases, retries, results, dead, few)
  end
  if state.open == 0 and are_few(ARGV, bodies) then
    keep_few(state, now, ARGV, bodies)
    state.left = state.total
    return
  end
  if #ARGV >= bodies then
    add_entries(state, now, ARGV, bodies)
  end
  redis.call("XGROUP", "CREATE", stream, stream, "0", "MKSTREAM")
  redis.call("SET", counter, state.total + state.open)
  state.left = state.total + state.open
end
