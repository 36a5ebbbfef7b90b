-- The tokens of requests that name a tenant. They wait in `turns`; their lane has a placeholder for each. A unit that pops
-- a placeholder takes the oldest token of the tenant that has had the least time for its share of this lane. So a tenant
-- with many requests gets no more time than a tenant with one. A surplus placeholder finds no token; the auditor adds a
-- missing one.
-- @include lib/dispatch/tenants.lua
local PLACEHOLDER = "@"
local KEPT = 100000  -- an idle tenant is forgotten when the lane's clock is so far ahead of it

-- Returns what goes to the lane for a token: the token itself, or a placeholder.
local function word_for(token)
  return string.find(token, "@", 1, true) and PLACEHOLDER or token
end

-- Adds a token to those of its tenant.
-- @rare
local function add_turn(lane, token)
  local tenant = string.match(token, "@%d+:(.+)$")
  local name, base = lane .. "|" .. tenant, lane * SPAN
  local seq = score_above(SEQ, "seq", 0) + 1
  put(SEQ, "seq", seq)
  redis.call("ZADD", turns, 0, string.format("%s|%015.0f|%s", name, seq, token))
  if not redis.call("ZSCORE", tenants, name) then
    put(base, name, math.max(score_above(IDLE + base, "-" .. name, 0), score_above(CLOCK, "v" .. lane, 0)))
    redis.call("ZREM", tenants, "-" .. name)
  end
end

local function place_token(lane, token)
  local word = word_for(token)
  if word == PLACEHOLDER then
    add_turn(lane, token)
  end
  return word
end

local function is_of(member, name)
  return member and string.sub(member, 1, #name + 1) == name .. "|"
end

-- Forgets a few tenants that have been idle for long.
local function forget_idle(base, time)
  local low, high = IDLE + base, IDLE + base + math.max(0, time - KEPT)
  local old = redis.call("ZRANGEBYSCORE", tenants, score_text(low), below(high), "LIMIT", 0, 10)
  if #old > 0 then
    redis.call("ZREM", tenants, unpack(old))
  end
end

-- Takes the next token of a lane; returns nil if none is left.
-- @rare
local function take_turn(lane)
  local base = lane * SPAN
  while true do
    local range = redis.call("ZRANGEBYSCORE", tenants, score_text(base), below(base + SPAN), "WITHSCORES", "LIMIT", 0, 1)
    local name = range[1]
    if not name then
      return nil
    end
    local from = "[" .. name .. "|"
    local two = redis.call("ZRANGEBYLEX", turns, from, "+", "LIMIT", 0, 2)
    local first, second = two[1], two[2]
    redis.call("ZREM", tenants, name)
    if is_of(first, name) then
      local time, token = tonumber(range[2]) - base, string.match(first, "^[^|]*|[^|]*|[^|]*|(.*)$")
      redis.call("ZREM", turns, first)
      put(CLOCK, "v" .. lane, time)
      local ends = time + math.max(1, mean_cost(lane) / tonumber(string.match(token, "@(%d+):")))
      if is_of(second, name) then
        put(base, name, ends)
      else
        put(IDLE + base, "-" .. name, ends)
      end
      forget_idle(base, time)
      return token
    end
  end
end
