-- The two halves of an exchange: settles one lease, and acquires with one token.
-- @include lib/exchange/follow_ups.lua
-- @include lib/exchange/parse_token.lua
-- @include lib/lease/acquire.lua
-- @include lib/lease/complete.lua
-- @include lib/rates/take_all.lua
-- id -> state of a request that was settled and goes on; its table is still the truth, because nothing else runs.
local going_on = {}

local function settle_one(now, lease, follow_ups)
  select_request("req:{" .. lease.id .. "}")
  going_on[lease.id] = nil  -- an error must leave no state behind
  local state, reply = load_unfinished()
  reply = reply or complete(state, now, read_permit(lease.k), lease, lease.work)
  local word = reply[1]
  going_on[lease.id] = word == "ok" and state or nil
  if word == "ended" then
    add_ending(follow_ups, now, lease.id, reply[2])
  elseif word == "ok" then
    add_tokens(follow_ups, lease.id, reply[3])
  elseif word == "already" then
    add_tokens(follow_ups, lease.id, reply[2])
  end
  return {word}
end

-- Returns how many of the tokens belong to requests with a size: these share the time.
local function count_measured(tokens, size_of)
  local count = 0
  for _, token in ipairs(tokens) do
    if size_of[parse_token(token) or ""] then
      count = count + 1
    end
  end
  return count
end

-- Acquires again with what the request's buckets allow. `rated`: what acquire replied.
-- @rare
local function acquire_rated(state, now, claim, rated)
  local rates = rated[2]
  claim.allowance, claim.wait = take_all(now, rates, rated[3], rated[4] == 1)
  local reply = acquire(state, now, claim)
  local unused = claim.allowance - (reply[1] == "ok" and #reply[5] or 0)
  if unused > 0 then
    refund_all(now, rates, unused)
  end
  return reply
end

local function acquire_one(now, token, claim, size_of, follow_ups)
  local id, k, g = parse_token(token)
  if not id then
    return {"gone"}
  end
  select_request("req:{" .. id .. "}")
  local state, reply = going_on[id], nil
  if not state then
    state, reply = load_unfinished()
  end
  going_on[id] = nil
  claim.k, claim.g, claim.count = k, g, math.max(1, math.floor((size_of[id] or 1) / claim.share))
  claim.allowance = nil
  reply = reply or acquire(state, now, claim)
  if reply[1] == "rated" then
    reply = acquire_rated(state, now, claim, reply)
  end
  local word = reply[1]
  if word == "ended" then
    add_ending(follow_ups, now, id, reply[2])
  elseif word == "ok" then
    add_tokens(follow_ups, id, reply[6])
    reply[6] = {}
    return reply
  elseif reply[2] then
    add_tokens(follow_ups, id, reply[2])
  end
  return {word}
end
