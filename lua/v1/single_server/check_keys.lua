-- check_keys: gives back what keys hold without a lease, gives up tokens that were called and are queued no more, and calls what
-- waits where there is room. It reads what is held and called, not what waits.
-- Says: = corrected
-- @flags allow-oom
local conf = KEYS[1]  -- {queue}:conf  hash  ticket
local turns = KEYS[2]  -- {queue}:turns  zset  <lane>|<tenant>|<seq>|<token> -> 0
local tenants = KEYS[3]  -- {queue}:tenants  zset  tenant -> its virtual time, see lib/turns.lua
local limits = KEYS[4]  -- {queue}:limits  hash  key -> its limit
local first = tonumber(ARGV[1])  -- so many entries of each key are left out
local most = tonumber(ARGV[2])  -- so many are checked of each key, 1 to 1000
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

-- Returns true if this request goes on, or has stopped an order key in which others wait.
local function has_place(key, member)
  local is_stop = string.byte(member) == 33
  select_request("req:{" .. string.sub(member, is_stop and 2 or 1) .. "}")
  if is_stop then
    return redis.call("EXISTS", request) == 1 or redis.call("ZCARD", key.set) > 1
  end
  local state = load_state()
  return state and not is_ended(state)
end

local corrected = 0
for i = names, #ARGV do
  local key = each_key(home, ARGV[i] .. "=1")[1]
  for _, member in ipairs(redis.call("ZRANGEBYSCORE", key.set, "-inf", below(LINE - 1), "LIMIT", first, most)) do
    local is_held = not string.find(member, "%", 1, true)
    local is_right
    if key.place then
      is_right = has_place(key, member)
    else
      is_right = is_valid(member, is_held and "h" or "q")
    end
    if not is_right then
      redis.call("ZREM", key.set, member)
      corrected = corrected + 1
    end
  end
  call_next(home, key)
end
return corrected
