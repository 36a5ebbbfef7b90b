-- check_keys: gives back what keys hold without a lease, gives up tokens that were called and are queued no more, and calls what
-- waits where there is room. It reads what is held and called, not what waits. Of an order key it reads the first requests, as far as
-- they are gone, and some stops.
-- Says: = corrected
-- @flags allow-oom
local conf = KEYS[1]  -- {queue}:conf  hash  ticket
local turns = KEYS[2]  -- {queue}:turns  zset  <lane>|<tenant>|<seq>|<token> -> 0
local tenants = KEYS[3]  -- {queue}:tenants  zset  tenant -> its virtual time, see lib/turns.lua
local limits = KEYS[4]  -- {queue}:limits  hash  key -> its limit
local first = tonumber(ARGV[1])  -- so many entries of each limit are left out
local most = tonumber(ARGV[2])  -- so many are checked of each limit, 1 to 1000
local names = 3  -- ARGV[3...]  keys, at most 100
-- @include lib/keys_of_many.lua
-- @include lib/state.lua
-- @include lib/permits.lua

local count = #ARGV - names + 1
if count < 1 or count > 100 or not first or first < 0 or not most or most < 1 or most > 1000 then
  return redis.error_reply("BADARGUMENT check_keys wants a first entry, 1 to 1000 entries, and 1 to 100 keys")
end
local home = string.match(conf, "^[^}]*}")

-- Returns true if the permit of this lease or token is held, or queued, with its g.
local function is_valid(member, kind)
  local id, k, g = string.match(member, "^([^#]+)#(%d+)%.(%d+)")
  select_request("req:{" .. id .. "}")
  local state = load_state()
  if not state or is_ended(state) then
    return false
  end
  local permit = k == "0" and is_first_waiting(state) and first_permit(state) or read_permit(k)
  return permit.kind == kind and permit.g == g
end

-- Removes the places of requests that are gone or have ended before the one that has the turn, and the stops of requests that are
-- gone if nothing is behind them. Returns how many. A place elsewhere holds no request back.
local LOOKED_AT = 100  -- places and stops of one key in a call

local function check_order(key)
  local gone = {}
  for _, id in ipairs(redis.call("ZRANGEBYSCORE", key.set, "-inf", below(STOPS), "LIMIT", 0, LOOKED_AT)) do
    select_request("req:{" .. id .. "}")
    local state = load_state()
    if state and not is_ended(state) then
      break
    end
    gone[#gone + 1] = id
  end
  local stops = redis.call("ZRANGEBYSCORE", key.set, score_text(STOPS), below(LINE - 1), "LIMIT", 0, LOOKED_AT)
  for _, stop in ipairs(stops) do
    local place, id = string.match(stop, "^!(%d+):(.*)$")
    select_request("req:{" .. id .. "}")
    if redis.call("EXISTS", request) == 0 and redis.call("ZCOUNT", key.set, place, below(STOPS)) == 0 then
      gone[#gone + 1] = stop
    end
  end
  if #gone > 0 then
    redis.call("ZREM", key.set, unpack(gone))
  end
  return #gone
end

-- Removes what holds a limit, or was called there, without a lease or a queued permit. Returns how many.
local function check_limit(key)
  local count = 0
  for _, member in ipairs(redis.call("ZRANGEBYSCORE", key.set, "-inf", below(LINE - 1), "LIMIT", first, most)) do
    if not is_valid(member, string.find(member, "%", 1, true) and "q" or "h") then
      redis.call("ZREM", key.set, member)
      count = count + 1
    end
  end
  return count
end

local corrected = 0
for i = names, #ARGV do
  local key = each_key(home, ARGV[i] .. "=1")[1]
  corrected = corrected + (key.place and check_order or check_limit)(key)
  call_next(home, key)
end
return corrected
