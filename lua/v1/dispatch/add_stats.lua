-- add_stats: adds what one worker process measured to the queue's statistics. A repeat would count twice.
-- Says: = fields
-- @flags allow-oom
-- @once
local stats = KEYS[1]  -- {queue}:stats  hash  <priority>:<what> -> number; a name ending in max keeps the largest
local numbers = 1  -- ARGV[1...]  field, whole number

if #ARGV == 0 or #ARGV % 2 ~= 0 or #ARGV > 4000 then
  return redis.error_reply("BADARGUMENT add_stats wants 1 to 2000 pairs of field and number")
end
for i = numbers + 1, #ARGV, 2 do
  if not string.match(ARGV[i], "^%d+$") then
    return redis.error_reply("BADARGUMENT add_stats wants whole numbers, not " .. ARGV[i])
  end
end
for i = numbers, #ARGV, 2 do
  local field, number = ARGV[i], ARGV[i + 1]
  if string.sub(field, -4) ~= ":max" then
    redis.call("HINCRBY", stats, field, number)
  elseif tonumber(number) > tonumber(redis.call("HGET", stats, field) or -1) then
    redis.call("HSET", stats, field, number)
  end
end
return #ARGV / 2
