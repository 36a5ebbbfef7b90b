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
