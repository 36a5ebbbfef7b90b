-- The request's hash as a table. load_state() reads it once at the start of a script, save_state()
-- writes what scripts change once at its end; between them the table is the truth.
local NUMBERS = {
  "limit", "priority", "seq", "queued", "high", "fresh", "total", "done", "dead", "open", "open_until", "born",
  "attempts", "backoff_min", "backoff_max", "lease_ms", "retain_ms", "max_body", "chunks", "last_ms", "sleep_due",
  "ended", "cancelled", "deadline", "time_limit_ms", "durable",
}
local STRINGS = {"state", "sleeper", "free", "digest", "chain", "queue", "reason"}

local function load_state()
  local first = redis.call("HGET", request, "state")
  if not first or first == "abandoned" then
    return nil
  end
  local state = {}
  local values = redis.call("HMGET", request, unpack(NUMBERS))
  for i, name in ipairs(NUMBERS) do
    state[name] = tonumber(values[i]) or 0
  end
  values = redis.call("HMGET", request, unpack(STRINGS))
  for i, name in ipairs(STRINGS) do
    state[name] = values[i] or ""
  end
  state.held = redis.call("ZCARD", leases)
  return state
end

local function save_state(state)
  redis.call("HSET", request, "state", state.state, "seq", state.seq, "queued", state.queued, "sleeper", state.sleeper,
    "sleep_due", state.sleep_due, "free", state.free, "high", state.high, "fresh", state.fresh, "done", state.done,
    "dead", state.dead)
end

-- Nothing of a request starts after its deadline; reap makes the rest of it dead.
local function is_overdue(state, now)
  return state.deadline > 0 and now >= state.deadline
end

local function is_ended(state)
  return state.state == "done" or state.state == "cancelled"
end

-- What retire needs: state, born, total, done, dead, cancelled, ended, priority, reason, retain_ms.
local function summary(state)
  return {state.state, state.born, state.total, state.done, state.dead, state.cancelled, state.ended, state.priority,
    state.reason, state.retain_ms}
end

-- A request that goes on; or nil and what a script says instead.
local function living_state()
  local state = load_state()
  if not state then
    return nil, {"gone"}
  end
  if is_ended(state) then
    return nil, {"ended", summary(state)}
  end
  return state
end
