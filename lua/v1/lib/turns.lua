-- The turns of tenants: whose token is next in a lane.

-- ------------------------------------------------------------------ virtual times

-- The virtual times of tenants, whose order is start-time fair queueing (Goyal, Vin and Cheng, 1996). Virtual time is in
-- tenths of ms of handlers, divided by the share. The scores in `tenants`:
--   <lane>|<tenant>   lane * SPAN + the virtual time of a tenant that has tokens in `turns`
--   -<lane>|<tenant>  IDLE + the same, of a tenant whose tokens are all taken
--   v<lane>           CLOCK + the virtual time at which the last turn began, or at which all turns have ended if no
--                     tenant has a token
--   c<lane>           COST + the mean cost of a turn, in ten-thousandths of ms
--   seq               SEQ + how many tokens were added
local SPAN = 2 ^ 44
local IDLE = 100 * SPAN
local CLOCK = 200 * SPAN
local COST = 201 * SPAN
local SEQ = 202 * SPAN
local USUAL_COST = 200  -- of a turn in a lane in which none was measured
local KEPT = 100000  -- an idle tenant is forgotten when the lane's clock is so far ahead of it

-- Returns how far the score of a member is above a base, or `otherwise` if there is no such member.
local function score_above(base, member, otherwise)
  local found = redis.call("ZSCORE", tenants, member)
  return found and tonumber(found) - base or otherwise
end

local function score_text(number)
  return string.format("%.0f", number)
end

local function below(number)
  return "(" .. score_text(number)
end

local function put(base, member, number)
  redis.call("ZADD", tenants, score_text(base + number), member)
end

local function mean_cost(lane)
  return score_above(COST, "c" .. lane, 1000 * USUAL_COST) / 1000
end

-- ------------------------------------------------------------------ turns

-- The tokens of requests that name a tenant. They wait in `turns`; their lane has a placeholder for each. A unit that pops
-- a placeholder takes the oldest token of the tenant that has had the least time for its share of this lane. So a tenant
-- with many requests gets no more time than a tenant with one. A surplus placeholder finds no token; the auditor adds a
-- missing one.
local PLACEHOLDER = "@"
local MOST_IDLE = 500  -- tenants of a lane; of more than these, those that have had the least are forgotten

-- Returns what goes to the lane for a token: the token itself, or a placeholder.
local function word_for(token)
  return string.find(token, "@", 1, true) and PLACEHOLDER or token
end

-- Adds a token to those of its tenant.
-- @rare
local function add_turn(lane, token)
  local tenant = string.match(token, "@%d+:([^%%]+)")
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

-- Forgets a few tenants that have been idle for long, or are too many. More than one turn can add, so the others get fewer.
local function forget_idle(base, time)
  local low, high = IDLE + base, IDLE + base + SPAN
  if redis.call("ZCOUNT", tenants, score_text(low), below(high)) <= MOST_IDLE then
    high = low + math.max(0, time - KEPT)
  end
  local old = redis.call("ZRANGEBYSCORE", tenants, score_text(low), below(high), "LIMIT", 0, 10)
  if #old > 0 then
    redis.call("ZREM", tenants, unpack(old))
  end
end

-- Returns the clock of a lane in which no tenant has a token: the latest time at which a turn ends. So an idle tenant has
-- nothing ahead of those that come later, and may be forgotten.
local function last_turn_end(base)
  local last = redis.call("ZREVRANGEBYSCORE", tenants, below(IDLE + base + SPAN), score_text(IDLE + base), "WITHSCORES",
    "LIMIT", 0, 1)
  return tonumber(last[2]) - IDLE - base
end

-- Takes the next token of a lane; returns nil if none is left.
-- @rare
local function take_turn(lane)
  local base = lane * SPAN
  while true do
    local range = redis.call("ZRANGEBYSCORE", tenants, score_text(base), below(base + SPAN), "WITHSCORES", "LIMIT", 0, 2)
    local name, is_last = range[1], not range[3]
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
      local ends = time + math.max(1, mean_cost(lane) / tonumber(string.match(token, "@(%d+):")))
      if is_of(second, name) then
        put(base, name, ends)
      else
        put(IDLE + base, "-" .. name, ends)
        time = is_last and last_turn_end(base) or time
      end
      put(CLOCK, "v" .. lane, time)
      forget_idle(base, time)
      return token
    end
  end
end
