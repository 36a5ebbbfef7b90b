-- Every script that changes a request ends with mint. It queues as many permits as there is work and room for. It returns
-- their tokens for the caller to dispatch, three values for each: lane, "<k>.<g>", delay in ms (0 = now).
-- @include lib/core/state.lua
-- @include lib/permits/queue_permit.lua
local function ready(state, now)
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

-- Queues one sleeper, a permit whose token is due at the earliest retry. Called when no permit is awake and nothing
-- waits but future retries.
local function mint_sleeper(state, now, tokens)
  local first = redis.call("ZRANGE", retries, 0, 0, "WITHSCORES")
  local due = tonumber(first[2])
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
  if state.queued == 0 and work == 0 and not state.has_no_retries and state.held < state.limit then
    mint_sleeper(state, now, tokens)
  end
  return tokens
end
