-- add_stats: adds what one worker process measured to statistics of the queue. A repeat would count twice.
-- Statistics by task are bounded: a field "<task>:calls" begins the fields of a task, and if that task is new and there are
-- as many fields as there may be, its fields count as those of "other".
-- Says: = fields
-- @flags allow-oom
-- @once
local stats = KEYS[1]  -- {queue}:stats  hash  <priority>:<what> -> number, or :tasks with <task>:<what>; max keeps the largest
local most = tonumber(ARGV[1])  -- fields after which no new task is added, 0 = they are not by task
local numbers = 2  -- ARGV[2...]  field, whole number

if not most or #ARGV < 3 or #ARGV % 2 ~= 1 or #ARGV > 4001 then
  return redis.error_reply("BADARGUMENT add_stats wants a bound and 1 to 2000 pairs of field and number")
end
for i = numbers + 1, #ARGV, 2 do
  if not string.match(ARGV[i], "^%d+$") then
    return redis.error_reply("BADARGUMENT add_stats wants whole numbers, not " .. ARGV[i])
  end
end
local other  -- length of the name of the task whose fields are those of "other"
for i = numbers, #ARGV, 2 do
  local field, number = ARGV[i], ARGV[i + 1]
  local task = most > 0 and string.match(field, "^(.*):calls$")
  if task then
    local is_new = redis.call("HEXISTS", stats, field) == 0
    other = is_new and redis.call("HLEN", stats) >= most and #task
  end
  if other then
    field = "other" .. string.sub(field, other + 1)
  end
  if string.sub(field, -4) ~= ":max" then
    redis.call("HINCRBY", stats, field, number)
  elseif tonumber(number) > tonumber(redis.call("HGET", stats, field) or -1) then
    redis.call("HSET", stats, field, number)
  end
end
return (#ARGV - 1) / 2
