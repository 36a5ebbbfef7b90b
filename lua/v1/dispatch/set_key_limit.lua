-- set_key_limit: sets the limit of a key until it is taken back, or takes it back. A person does so, or a worker for one of its
-- tasks; the number of a person is in force as long as there is one. Tokens that wait are called as far as there is room, up to 100
-- of them. Leases above a lower limit are not taken back.
-- Says: ok former | more former
--   former = the limit before, "" = the key was not in use; more: there is room for others, so the call must be repeated
-- @flags allow-oom
local conf = KEYS[1]  -- {queue}:conf  hash  ticket, shards
local turns = KEYS[2]  -- {queue}:turns  zset  <lane>|<tenant>|<seq>|<token> -> 0
local tenants = KEYS[3]  -- {queue}:tenants  zset  tenant -> its virtual time, see lib/turns.lua
local limits = KEYS[4]  -- {queue}:limits  hash  key -> its limit
local key = KEYS[5]  -- {queue}:key:<name>  zset  what holds and what waits for it, see lib/limit_keys.lua
local name = ARGV[1]  -- of the key
local limit = tonumber(ARGV[2])  -- 1..10000; 0 = as the requests say that name it
local by = ARGV[3]  -- set: a person; task: a worker that has the task
-- @include lib/limit_keys.lua

if name == "" or not limit or limit < 0 or limit > 10000 or limit % 1 ~= 0 or by ~= "set" and by ~= "task" then
  return redis.error_reply("BADLIMIT a key, a whole number from 0 to 10000, and set or task are expected")
end
local home = string.match(conf, "^[^}]*}")
local former, marked, of_task = string.match(redis.call("HGET", limits, name) or "", "^(%d+) ?(%l*) ?(%d*)$")
if marked == "task" then
  of_task = former
end
local by_hand = marked == "set" and former or ""
local wanted = limit > 0 and string.format("%d", limit) or ""
if by == "set" then
  by_hand = wanted
else
  of_task = wanted
end
local text = former
if by_hand ~= "" then
  text = string.gsub(by_hand .. " set " .. (of_task or ""), " $", "")
elseif (of_task or "") ~= "" then
  text = of_task .. " task"
end
if text then
  redis.call("HSET", limits, name, text)
end
if text and string.find(text, " ", 1, true) and redis.call("EXISTS", key) == 0 then
  return {"ok", former or ""}
end
local found = each_key(home, name .. "=1")[1]
call_next(home, found)
local token, rank = first_in_line(found)
local has_more = token and (rank == -1 or may_call(home, found, token, rank))
return {has_more and "more" or "ok", former or ""}
