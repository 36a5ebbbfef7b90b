-- The gate of a request: until it opens, nothing of the request starts.
-- @include lib/state.lua
-- @include lib/permits.lua

-- ------------------------------------------------------------------ gate

-- The gate of a request: before `opens` (ms) none of its sub-requests starts. It is closed at creation by a delay, and
-- later whenever its rates leave no room. A request that waits for others has a gate that opens NEVER, until the leading
-- worker has found that they ended. `rates` has the widest number of tokens that may be on their way, and four
-- values for each bucket (lib/rates.lua): " <key> <interval> <burst> <weight>". `turn` is "<share>:<tenant>", "" without a
-- tenant; see lib/turns.lua. `keys` is "<queue>%<name>=<limit>,...", "" without keys; see lib/limit_keys.lua. `wait` is for how many ms the gate was closed, 0 if it opens at a time of the calendar.

-- Returns true if this text has a width and four values for each rate.
local function are_rates(text)
  local rest = string.match(text, "^[1-9]%d*( .+)$")
  while rest and rest ~= "" do
    rest = string.match(rest, "^ [%w_.:/=-]+ [1-9]%d* [1-9]%d* [1-9]%d*(.*)$")
  end
  return rest == ""
end

-- Gives the request another gate. If `rates` is nil, the request keeps its rates.
-- @rare
local function set_gate(state, opens, is_limited, rates, wait)
  state.gate = {opens = opens, rates = rates or state.gate.rates, is_limited = is_limited, turn = state.gate.turn,
    wait = opens > 0 and (wait or state.gate.wait) or 0, keys = state.gate.keys}
  redis.call("HSET", request, "gate", gate_text(state.gate))
end

-- Closes the gate until `opens`; `is_limited`: because the buckets have no room. The tokens that are on their way go stale; mint queues the sleeper.
-- @rare
local function close_gate(state, now, opens, is_limited)
  set_gate(state, opens, is_limited, nil, opens - now)
  park_surplus(state, now, all_permits(state))
end

-- ------------------------------------------------------------------ ageing

-- Ageing: if nothing of a request has started for as long as its `ageing`, one of its waiting permits goes to the most
-- urgent lane. So a request of any priority starts at least one slice in this time, and does not overtake the others for
-- longer than that. A permit that waits in that lane stays where it is: another token would stand behind those of the
-- others, and its stale ones would pile up as long as all workers are busy.

-- Returns when the request has waited for too long. A fence is at least the time of its acquire in us (lib/lease.lua).
-- `aged`: when a permit was last hastened, as text or nil.
local function aged_at(state, ageing, aged)
  return math.max(state.born, state.gate.opens, math.floor(state.seq / 1000), tonumber(aged) or 0) + tonumber(ageing)
end

-- Moves the permit that has waited for longest in another lane to the most urgent one; its former token goes stale.
-- Returns the tokens.
local function hasten(state, now)
  local first, least
  local all = all_permits(state)
  for i = 1, #all, 2 do
    local g, lane = string.match(all[i + 1], "^q:(%d+):%d+:(%d+)")
    g = tonumber(g)
    if g and lane % 100 > 0 and all[i] ~= state.sleeper and (not least or g < least) then  -- a shard has 100 lanes
      first, least = all[i], g
    end
  end
  local tokens, priority = {}, state.priority
  state.given = tokens
  if first then
    state.priority = 0
    leave_keys(state, first, string.format("%d", least))
    queue_permit(state, first, now, 0, tokens)
    state.priority = priority
  end
  return tokens
end

-- ------------------------------------------------------------------ chore

-- What a request needs besides reap: to be hastened, or to be started after others, or to be fed.
-- feed = what it gets (see operations/flow_hand_over.py), its sources, stop, continue or hold for each source, the request that must
-- not fall too far behind (- = none), how many results make a body or how many choices a result has, what is written around
-- results, and the names that a result may choose.
local POLL = 1000  -- ms between two looks at the requests that this one waits for, more as it gets older
local POLL_MOST = 5000

-- Returns what a leading worker must do for the request besides reap, and the ms until the next look.
local function chore_of(state, at, after, ageing, aged, feed)
  local fed, most = nil, math.huge
  if feed and state.open == 1 and state.state ~= "cancelling" then
    fed, most = "feed", math.min(POLL_MOST, math.max(POLL, (at - state.born) / 200))
  end
  if state.gate.opens == NEVER then
    return after, math.min(POLL_MOST, math.max(POLL, (at - state.born) / 20))
  elseif not ageing or state.queued == 0 then  -- nothing is queued if it is not active
    return fed, math.min(most, tonumber(ageing) or most)
  end
  local due = aged_at(state, ageing, aged)
  if due <= at then
    return "aged", tonumber(ageing)
  end
  return fed, math.min(most, due - at)
end

-- ------------------------------------------------------------------ clock that went back

-- Times of a request that lie too far ahead, because they were set before the clock went back. A gate notes how long it was
-- closed for. A retry waits for no longer than the request's backoff, or the longest pause that a handler asked for.

-- Returns when the gate opens, but no later than if it had been closed now for its `wait`.
local function opens_by(gate, now)
  return gate.wait > 0 and math.min(gate.opens, now + gate.wait) or gate.opens
end

-- Returns the latest time that a retry may have as its due time.
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
