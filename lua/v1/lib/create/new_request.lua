-- How a request begins. `new` holds what its producer sent, see enqueue.
-- @include lib/create/shards.lua
-- @include lib/create/policy.lua
-- @include lib/create/extras.lua
-- @include lib/ids/distinct.lua
local function new_state(new, now)
  local policy = new.policy
  return {state = "active", limit = policy.limit, priority = policy.priority, attempts = policy.attempts,
    backoff_min = policy.backoff_min, backoff_max = policy.backoff_max, lease_ms = policy.lease_ms,
    retain_ms = policy.retain_ms, time_limit_ms = policy.time_limit_ms, durable = policy.durable,
    deadline = policy.deadline_ms > 0 and now + policy.deadline_ms or 0, born = now, seq = 0, queued = 0, high = 0,
    fresh = 0, total = 0, done = 0, dead = 0, open = new.open_ms > 0 and 1 or 0, few = 0, max_body = 0, last_ms = 0,
    sleep_due = 0, sleeper = "", free = "", held = 0, has_no_retries = true, shards = new.shards,
    gate = first_gate(new.extras, now)}
end

-- Returns the policy as the request's hash has it. Requests that one call creates share it.
local function stored_policy(new, state)
  local policy = new.policy
  if policy.born ~= state.born then
    policy.born, policy.stored = state.born, policy_text(state)
  end
  return policy.stored
end

-- `chunk`: the first bodies are list[first..last] of it.
local function store_bodies(state, now, chunk)
  -- Keys whose hash is gone belong to no request: they may expire soon, or hold another life's results.
  if redis.call("EXISTS", stream, counter, permits, leases, retries, results, dead, few, errors) > 0 then
    redis.call("UNLINK", stream, counter, permits, leases, retries, results, dead, few, errors)
  end
  if state.open == 0 and are_few(chunk.list, chunk.first, chunk.last) then
    keep_few(state, now, chunk.list, chunk.first, chunk.last)
    state.left = state.total
    return
  end
  if chunk.last >= chunk.first then
    add_entries(state, now, chunk.list, chunk.first, chunk.last)
  end
  redis.call("XGROUP", "CREATE", stream, stream, "0", "MKSTREAM")
  redis.call("SET", counter, state.total + state.open)
  state.left = state.total + state.open
end

-- Stores each sub-request whose id is new; returns how many others there are. Only an open request keeps the ids, because
-- nothing is added to another one.
-- @rare
local function store_distinct(state, now, new)
  local count = #new.own
  local wanted, ids = new_ones(nil, new.own, new.list, new.first)
  new.list, new.first, new.last = wanted, 1, #wanted
  if state.open == 0 then
    store_bodies(state, now, new)
  else
    drop_ids(new.ids)  -- another life may have left them
    with_ids(new.ids, ids, IDS_MS, store_bodies, state, now, new)
  end
  return count - #wanted
end
