-- How a request begins. `new` holds what its producer sent, see enqueue.
-- @include lib/core/shards.lua
-- @include lib/create/policy.lua
local function new_state(new, now)
  local limit, priority, attempts, backoff_min, backoff_max, lease_ms, retain_ms, time_limit_ms, durable, deadline_ms =
    string.match(new.policy, TERMS)
  local n = tonumber
  local deadline = n(deadline_ms) > 0 and now + n(deadline_ms) or 0
  return {state = "active", limit = n(limit), priority = n(priority), attempts = n(attempts), backoff_min = n(backoff_min),
    backoff_max = n(backoff_max), lease_ms = n(lease_ms), retain_ms = n(retain_ms), time_limit_ms = n(time_limit_ms),
    durable = n(durable), deadline = deadline, born = now, seq = 0, queued = 0, high = 0,
    fresh = 0, total = 0, done = 0, dead = 0, open = new.open_ms > 0 and 1 or 0, few = 0, max_body = 0, last_ms = 0,
    sleep_due = 0, sleeper = "", free = "", held = 0, has_no_retries = true, shards = new.shards}
end

local function store_bodies(state, now, bodies)
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
