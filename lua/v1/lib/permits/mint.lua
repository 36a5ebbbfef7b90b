-- Every script that changes a request ends with mint. It queues as many permits as there is work and room for. It returns
-- their tokens for the caller to dispatch, three values for each: lane, "<k>.<g>", delay in ms (0 = now).
-- @include lib/core/state.lua
-- @include lib/permits/queue_permit.lua
local NEVER = 9007199254740991  -- when the gate of a request opens that waits for others

-- Returns how many sub-requests may be delivered now.
local function ready(state, now)
  if state.gate.opens > now then
    return 0
  end
  return state.fresh + (state.has_no_retries and 0 or redis.call("ZCOUNT", retries, "-inf", now))
end

local function unpark(state)
  local k = state.free
  if k ~= "" then
    state.free = string.match(redis.call("HGET", permits, k) or "", "^p:(%d*)$") or ""  -- reap repairs a damaged list
    return k
  end
  k = string.format("%d", state.high)
  state.high = state.high + 1
  return k
end

-- Returns when the next sub-request may be delivered: when the gate opens, or when the earliest retry is due. Returns nil
-- if nothing waits.
local function next_due(state, now)
  if state.gate.opens > now and (state.fresh > 0 or state.gate.opens == NEVER) then
    return state.gate.opens < NEVER and state.gate.opens or nil
  end
  local first = state.has_no_retries and {} or redis.call("ZRANGE", retries, 0, 0, "WITHSCORES")
  return first[2] and math.max(tonumber(first[2]), state.gate.opens)
end

-- Queues one sleeper, a permit whose token is due with the next sub-request. Called when no permit is awake and nothing
-- may be delivered now.
-- @rare
local function mint_sleeper(state, now, tokens)
  local due = next_due(state, now)
  if not due or (state.sleeper ~= "" and state.sleep_due <= due) then
    return
  end
  if state.sleeper == "" then
    state.sleeper = unpark(state)
  end
  state.sleep_due = due
  queue_permit(state, state.sleeper, now, due, tokens)
end

-- Takes time only for the tokens it mints. Permits in use never exceed `limit`, so unpark always finds one below it.
local function mint(state, now)
  local tokens = {}
  if state.state ~= "active" or is_overdue(state, now) then
    return tokens
  end
  local work = ready(state, now)
  local want = math.min(state.limit - state.held, work)
  if state.gate.rates ~= "" then
    want = math.min(want, tonumber(string.match(state.gate.rates, "^%d+")))
  end
  while state.queued < want do
    local k = state.sleeper
    if k == "" then
      k = unpark(state)
    else
      state.sleeper = ""  -- a sleeper wakes first; its old token goes stale with the new g
    end
    queue_permit(state, k, now, 0, tokens)
    state.queued = state.queued + 1
  end
  if state.queued == 0 and work == 0 and state.held < state.limit and (state.gate.opens > now or not state.has_no_retries) then
    mint_sleeper(state, now, tokens)
  end
  return tokens
end
