-- Times of a request that lie too far ahead, because they were set before the clock went back. A gate notes how long it was
-- closed for. A retry waits for no longer than the request's backoff, or the longest pause that a handler asked for.
-- @include lib/core/state.lua
-- @include lib/gate/gate.lua

-- Returns when the gate opens; `wait`: no later than if it had been closed now.
local function opens_by(gate, now)
  return gate.wait > 0 and math.min(gate.opens, now + gate.wait) or gate.opens
end

-- Returns the latest time at which a retry may be due that was set by now.
local function latest_retry(state, now)
  return now + math.max(state.backoff_max, tonumber(redis.call("HGET", request, "pause") or 0) or 0)
end

local function is_ahead(state, now)
  if opens_by(state.gate, now) < state.gate.opens then
    return true
  end
  local last = state.few == 0 and tonumber(redis.call("ZRANGE", retries, -1, -1, "WITHSCORES")[2])
  return last and last > now + state.backoff_max and last > latest_retry(state, now)
end

-- Brings such times back: the gate waits once more, and the retries are due now.
-- @rare
local function bring_back(state, now)
  local opens = opens_by(state.gate, now)
  if opens < state.gate.opens then
    set_gate(state, opens, state.gate.is_limited, nil, state.gate.wait)
  end
  for _, id in ipairs(redis.call("ZRANGEBYSCORE", retries, latest_retry(state, now) + 1, "+inf")) do
    redis.call("ZADD", retries, string.format("%d", now), id)
  end
end
