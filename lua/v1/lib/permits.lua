-- The permits of a request: each lets one worker at a time hold a slice of it.
-- @include lib/state.lua
-- @include lib/request_limits.lua

-- ------------------------------------------------------------------ permit

-- Permit k of `limit`, as a field of tok:{id}:
--   q:<g>:<since>:<lane>:<due>             queued: one token with this g is on its way (due 0 = now)
--   h:<fence>:<g>:<op>:<started>:<owed>:<shared>:<first>:<last>:<worker>   held under a lease, of whose
--     stream entries the first and last are named until some of them are settled
--   p:<next>                               parked; `free` in req:{id} is the head of this list
-- Numbers never used before (k >= high) are parked without a field, so a new request costs nothing. The first permit
-- of a new request has no field either, until it is acquired or anything else is queued: see the first permit.
-- Only a held permit has a fence and an op, so a caller that passes both holds the permit.
local function parse_permit(text)
  if not text then
    return {kind = "p"}
  end
  local kind = string.sub(text, 1, 1)
  if kind == "q" then
    local g, since, lane, due = string.match(text, "^q:(%d+):(%d+):(%d+):(%d+)$")
    return {kind = kind, g = g, since = tonumber(since), lane = lane, due = tonumber(due)}
  elseif kind == "h" then
    local fence, g, op, started, owed, shared, first, last, worker =
      string.match(text, "^h:(%d+):(%d+):(%x*):(%d*):(%d+):(1?):([%d-]*):([%d-]*):(.*)$")
    return {kind = kind, fence = fence, g = g, op = op, started = started, owed = tonumber(owed),
      shared = shared, first = first, last = last, worker = worker}
  end
  return {kind = kind}
end

local function read_permit(k)
  return parse_permit(redis.call("HGET", permits, k))
end

-- With `is_last` it also notes the fence as the permit's last one. So after the permit is returned, a repeat of
-- this call gets "already". A call whose lease was taken back gets "lost".
local function write_held(k, permit, is_last)
  local text = string.format("h:%s:%s:%s:%s:%d:%s:%s:%s:%s", permit.fence, permit.g, permit.op,
    permit.started, permit.owed, permit.shared, permit.first, permit.last, permit.worker)
  if is_last then
    redis.call("HSET", permits, k, text, "last" .. k, permit.fence)
  else
    redis.call("HSET", permits, k, text)
  end
end

local function consumer_of(permit, k)
  return permit.worker .. "/" .. k
end

-- Deletes a permit that is above a lowered limit; puts any other on top of the parked list.
local function park(state, k)
  if tonumber(k) < state.limit then
    redis.call("HSET", permits, k, "p:" .. state.free)
    state.free = k
  else
    redis.call("HDEL", permits, k)
  end
end

local function unqueue(state, k)
  if state.sleeper == k then
    state.sleeper = ""
  else
    state.queued = state.queued - 1
  end
end

local function release_permit(state, k, permit)
  state.held = state.held - 1  -- before ZREM, because it may be counted only now
  redis.call("ZREM", leases, k)
  leave_keys(state, k, permit.g, permit.op)
  park(state, k)
end

-- ------------------------------------------------------------------ first permit

-- The first permit of a new request, which has no field in tok:{id} while it waits.

-- Returns a lane's number: its priority, plus a hundred times the shard if the queue is spread over shards.
local function lane_of(state, k)
  if state.shards == "" then
    return state.priority
  end
  if not state.shard_list then
    state.shard_list = {}
    for shard in string.gmatch(state.shards, "%d+") do
      state.shard_list[#state.shard_list + 1] = tonumber(shard)
    end
  end
  return 100 * state.shard_list[k % #state.shard_list + 1] + state.priority
end

local FIRST = 1  -- the g of the first token, which only a token that is minted at creation may have

-- Returns true while permit 0 waits as it was queued at creation. Most requests have one sub-request, so this saves most
-- of them a key. Every fence and every other token makes `seq` larger.
local function is_first_waiting(state)
  return state.seq == FIRST and state.queued == 1
end

local function first_permit(state)
  return {kind = "q", g = tostring(FIRST), since = state.born, lane = lane_of(state, 0), due = 0}
end

-- Returns the fields of tok:{id} as HGETALL does, with the one that the first permit would have.
local function all_permits(state)
  local all = redis.call("HGETALL", permits)
  if is_first_waiting(state) then
    all[#all + 1], all[#all + 2] = "0", string.format("q:%d:%d:%d:0", FIRST, state.born, lane_of(state, 0))
  end
  return all
end

local function count_fields(state)
  return redis.call("HLEN", permits) + (is_first_waiting(state) and 1 or 0)
end

-- ------------------------------------------------------------------ queued permits

-- Queues a permit: chooses its lane, writes it to the hash, and adds its token to the list that the caller gets, as three
-- values: lane, "<k>.<g>" and what token_suffix returns, delay in ms (0 = now).
local function write_queued(k, g, at, lane, due)
  redis.call("HSET", permits, k, string.format("q:%d:%d:%d:%d", g, at, lane, due))
end

local function queue_permit(state, k, now, due, tokens)
  local lane = lane_of(state, k)
  if is_first_waiting(state) then  -- no longer as it was queued at creation
    write_queued("0", FIRST, state.born, lane_of(state, 0), 0)
  end
  if state.seq < FIRST and (now ~= state.born or due > now) then
    state.seq = FIRST
  end
  state.seq = state.seq + 1
  if state.seq > FIRST then
    write_queued(k, state.seq, now, lane, due)
  end
  tokens[#tokens + 1] = string.format("%d", lane)
  local permit, gate = string.format("%s.%d", k, state.seq), state.gate
  tokens[#tokens + 1] = gate == OPEN and permit or permit .. token_suffix(state)
  tokens[#tokens + 1] = due > now and due - now or 0
end

-- Returns the tokens of all queued permits whose g is above `last`, and the highest g among them.
local function all_queued(state, now, last)
  local tokens, newest, suffix = {}, last, token_suffix(state)
  local all = all_permits(state)
  for i = 1, #all, 2 do
    local g, lane, due = string.match(all[i + 1], "^q:(%d+):%d+:(%d+):(%d+)$")
    if g and tonumber(g) > last then
      tokens[#tokens + 1] = lane
      tokens[#tokens + 1] = all[i] .. "." .. g .. suffix
      tokens[#tokens + 1] = math.max(0, tonumber(due) - now)
      newest = math.max(newest, tonumber(g))
    end
  end
  return tokens, newest
end

-- Returns queued tokens once more to a call that is repeated, because the first reply may be lost. Each token is
-- returned once more only, because a program may repeat calls without end, and every copy stays in its lane until it is
-- popped. `repeated` in the hash is the highest g that was repeated. If a repeated token is lost, the auditor finds it.
-- @rare
local function queued_tokens(state, now)
  local last = tonumber(redis.call("HGET", request, "repeated") or 0)
  local tokens, newest = all_queued(state, now, last)
  if newest > last then
    redis.call("HSET", request, "repeated", string.format("%d", newest))
  end
  return tokens
end

-- ------------------------------------------------------------------ mint

-- Every script that changes a request ends with mint. It queues as many permits as there is work and room for. It returns
-- their tokens for the caller to dispatch, three values for each: lane, "<k>.<g>", delay in ms (0 = now).
local NEVER = 9007199254740991  -- when the gate of a request opens that waits for others

-- Returns how many sub-requests may be delivered now.
local function ready(state, now)
  if state.gate.opens > now then
    return 0
  end
  local due = state.has_no_retries and 0 or redis.call("ZCOUNT", retries, "-inf", now)
  if is_ordered(state) and (due > 0 or not state.has_no_retries and redis.call("EXISTS", retries) == 1) then
    return math.min(due, 1)  -- what failed comes before the others, also in its pause
  end
  return state.fresh + due
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
  local tokens = state.given or {}
  state.given = nil
  if state.state ~= "active" or is_overdue(state, now) then
    return tokens
  end
  local work = ready(state, now)
  local want = math.min(state.limit - state.held, work)
  if state.gate.rates ~= "" then
    want = math.min(want, tonumber(string.match(state.gate.rates, "^%d+")))
  end
  if state.gate.keys ~= "" then
    want = math.min(want, least_limit(state))  -- more would only wait in its line
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

-- ------------------------------------------------------------------ limit

-- Fits the permits to a new limit. Afterwards no permit at or above the limit is queued or in the parked list, and no
-- more permits are awake than there is room and work for. Held ones stay until they are released: see release_permit.
-- `high` stays: numbers between a lowered limit and `high` have no field unless they are held, and
-- come back into the parked list when the limit is raised again.
local function park_surplus(state, now, all)
  local awake = {}
  for i = 1, #all, 2 do
    local k, g = all[i], string.match(all[i + 1], "^q:(%d+)")
    if g and tonumber(k) >= state.limit then
      unqueue(state, k)
      leave_keys(state, k, g)
      park(state, k)
    elseif g and state.sleeper ~= k then
      awake[#awake + 1] = {k = k, g = tonumber(g)}
    end
  end
  table.sort(awake, function(one, other) return one.g < other.g end)
  for i = math.max(0, math.min(state.limit - state.held, ready(state, now))) + 1, #awake do
    unqueue(state, awake[i].k)  -- the newest: the tokens of the others come first in their lane
    leave_keys(state, awake[i].k, string.format("%d", awake[i].g))
    park(state, awake[i].k)
  end
end

local function relink_parked(state)
  local used, all = {}, all_permits(state)
  for i = 1, #all, 2 do
    local k, kind = tonumber(all[i]), string.sub(all[i + 1], 1, 1)
    if k and kind == "p" and k >= state.limit then
      redis.call("HDEL", permits, all[i])
    elseif k and kind ~= "p" then
      used[k] = true
    end
  end
  state.free = ""
  for k = math.min(state.high, state.limit) - 1, 0, -1 do
    if not used[k] then
      redis.call("HSET", permits, k, "p:" .. state.free)
      state.free = tostring(k)
    end
  end
end

local function resize(state, now)
  ready(state, now)  -- refused, if at all, before anything is parked
  park_surplus(state, now, all_permits(state))
  relink_parked(state)
end

-- ------------------------------------------------------------------ stop

-- Stops the request: no further slice starts. Every queued permit is parked, and its token goes stale; held permits
-- end with their slice. `word` is the new state. After `cancelling`, finish counts the rest as cancelled, in one
-- number. After `expiring`, reap makes the rest dead. extend reports both to the holders. The third state is `paused`.
local function stop(state, word, reason)
  local all = all_permits(state)
  for i = 1, #all, 2 do
    local g = string.match(all[i + 1], "^q:(%d+)")
    if g then
      unqueue(state, all[i])
      leave_keys(state, all[i], g)
      park(state, all[i])
    end
  end
  state.state, state.is_stopped = word, true
  save_state(state, "reason", reason)
end

-- Cancels a request that was never complete, because its producer died or gave it up. After its end the same id may
-- be submitted again, see enqueue.
local function abandon(state, reason)
  stop(state, "cancelling", reason)
  redis.call("HSET", request, "abandoned", 1)
end

-- ------------------------------------------------------------------ lanes

-- After a change of the priority or the shards, queues all queued permits again in their new lanes, due as before.
local function change_lanes(state, now)
  local tokens = state.given or {}
  mint(state, now)  -- its tokens are left out, because all that is queued is queued again
  state.given = tokens
  local all = all_permits(state)
  for i = 1, #all, 2 do
    local g, due = string.match(all[i + 1], "^q:(%d+):%d+:%d+:(%d+)$")
    if due then
      leave_keys(state, all[i], g)
      queue_permit(state, all[i], now, tonumber(due), tokens)
    end
  end
  save_state(state)
  return tokens
end

-- ------------------------------------------------------------------ policy

-- Changes one value in the policy of an unfinished request, and returns the request's state. Returns nil and the
-- script's reply if the request has ended or already has this value.
local function change_policy(name, value, now)
  local state, over = load_unfinished()
  if over then
    return nil, over
  end
  if value == state[name] then
    return nil, {"ok", queued_tokens(state, now)}
  elseif name == "limit" and is_ordered(state) then
    return nil, redis.error_reply("REFUSED limit " .. value .. " is not possible: the request has an order key, so its sub-requests "
      .. "start one after the other")
  end
  state[name] = value
  redis.call("HSET", request, "policy", policy_text(state))
  return state
end
