-- charge_turns: charges tenants what their turns have really cost, instead of the mean that each turn was charged when it
-- was taken. A tenant that was forgotten is charged only if its turns end later than those of the others. A repeat would
-- charge twice.
-- Says: = charged
-- @flags allow-oom
-- @once
local tenants = KEYS[1]  -- {queue}:tenants  zset  tenant -> its virtual time, see lib/turns.lua
local rows = 1  -- ARGV[1...]  lane, <share>:<tenant>, turns, their cost in tenths of ms; at most 250 rows
-- @include lib/turns.lua
local WEIGHT = 32  -- turns after which a new mean counts as much as the one before

local function charge(lane, tenant, extra)
  local name, base = lane .. "|" .. tenant, lane * SPAN
  local time = score_above(base, name)
  if time then
    put(base, name, math.max(0, time + extra))
    return
  end
  local clock, idle = score_above(CLOCK, "v" .. lane, 0), score_above(IDLE + base, "-" .. name)
  time = (idle or math.max(0, clock - KEPT)) + extra
  if idle or time > clock then
    put(IDLE + base, "-" .. name, math.max(0, time))
  end
end

if #ARGV == 0 or #ARGV % 4 ~= 0 or #ARGV > 1000 then
  return redis.error_reply("BADARGUMENT charge_turns wants 1 to 250 rows of four")
end
for i = rows, #ARGV, 4 do
  if not (string.find(ARGV[i], "^%d%d?$") and string.find(ARGV[i + 1], "^[1-9]%d*:[^|]+$")
      and string.find(ARGV[i + 2], "^[1-9]%d*$") and string.find(ARGV[i + 3], "^%d+$")) then
    return redis.error_reply("BADARGUMENT charge_turns wants a lane, a share with a tenant, and two numbers")
  end
end
for i = rows, #ARGV, 4 do
  local lane, share, tenant = ARGV[i], string.match(ARGV[i + 1], "^(%d+):(.+)$")
  local count, cost = tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
  local mean = mean_cost(lane)
  charge(lane, tenant, (cost - count * mean) / tonumber(share))
  put(COST, "c" .. lane, 1000 * math.max(0.1, mean + (cost / count - mean) * count / (count + WEIGHT)))
end
return #ARGV / 4
