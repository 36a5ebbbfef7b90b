-- add_stats: adds what one worker process measured to statistics of the queue. A repeat would count twice.
-- Statistics by task are bounded: a field "<task>:calls" begins the fields of a task, and if that task is new and there are
-- as many fields as there may be, its fields count as those of "other". The field holds how many calls ended lately.
-- Says: = fields
-- @flags allow-oom
-- @once
local stats = KEYS[1]  -- {queue}:stats  hash  <priority>:<what> -> number, or :tasks with <task>:<what>; max keeps the largest
local now = ARGV[1]  -- ms, "" = server time
local most = tonumber(ARGV[2])  -- fields after which no new task is added, 0 = they are not by task
local numbers = 3  -- ARGV[3...]  field, whole number; after the calls of a task come those of them that failed
-- @include lib/core.lua
-- @include lib/task_stats.lua

if not most or #ARGV < 4 or #ARGV % 2 ~= 0 or #ARGV > 4002 then
  return redis.error_reply("BADARGUMENT add_stats wants a bound and 1 to 2000 pairs of field and number")
end
for i = numbers + 1, #ARGV, 2 do
  if not string.match(ARGV[i], "^%d+$") then
    return redis.error_reply("BADARGUMENT add_stats wants whole numbers, not " .. ARGV[i])
  end
end
local minute = most > 0 and math.floor(now_ms(now) / 60000)
local other  -- length of the name of the task whose fields are those of "other"
for i = numbers, #ARGV, 2 do
  local field, number = ARGV[i], ARGV[i + 1]
  local task = most > 0 and string.match(field, "^(.*):calls$")
  local lately = task and redis.call("HGET", stats, field)
  if task then
    other = not lately and redis.call("HLEN", stats) >= most and #task
  end
  if other then
    field = "other" .. string.sub(field, other + 1)
    lately = task and redis.call("HGET", stats, field)
  end
  if task then
    local failed = ARGV[i + 2] == task .. ":failed" and ARGV[i + 3] or 0
    redis.call("HSET", stats, field, lately_with(lately, minute, tonumber(number), tonumber(failed)))
  else
    add_measured(stats, field, number)
  end
end
return (#ARGV - 2) / 2
