-- Permit k of `limit`, as a field of tok:{id}:
--   q:<g>:<since>:<lane>:<due>             queued: one token with this g is on its way (due 0 = now)
--   h:<fence>:<g>:<op>:<started>:<owed>:<shared>:<first>:<last>:<worker>   held under a lease, of whose
--     stream entries the first and last are named until some of them are settled
--   p:<next>                               parked; `free` in req:{id} is the head of this list
-- Numbers never used before (k >= high) are parked without a field, so a new request costs nothing. The first permit
-- of a new request has no field either, until it is acquired or anything else is queued: see lib/permits/first_permit.lua.
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

local function release_permit(state, k)
  state.held = state.held - 1  -- before ZREM, because it may be counted only now
  redis.call("ZREM", leases, k)
  park(state, k)
end
