-- report_backlog: stores how much of each request is settled, as the caller has just read in the requests' own slots.
-- Its size replaces the admitted size, unless a later chunk was admitted since. Requests that left `active` count no more.
-- Says: = waiting
-- @flags allow-oom
local active = KEYS[1]  -- {queue}:active  zset  request -> when to look at it next, ms
local conf = KEYS[2]  -- {queue}:conf  hash  max_waiting, waiting
local loads = KEYS[3]  -- {queue}:load  hash  request -> what it adds to what waits
local rows = 1  -- ARGV[1...]  request, its chunks, its sub-requests, how many of them are settled
-- @include lib/queue.lua

if #ARGV % 4 ~= 0 or #ARGV > 1000 then
  return redis.error_reply("BADARGUMENT report_backlog wants at most 250 rows of four")
end
for i = rows, #ARGV, 4 do
  if not (tonumber(ARGV[i + 1]) and tonumber(ARGV[i + 2]) and tonumber(ARGV[i + 3])) then
    return redis.error_reply("BADARGUMENT report_backlog wants three numbers behind each request")
  end
end
if not redis.call("HGET", conf, "max_waiting") then
  return 0
end
for i = rows, #ARGV, 4 do
  local id, chunks, total, settled = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
  local before = read_load(id)
  local after = nil
  if redis.call("ZSCORE", active, id) then
    after = before or {chunk = 0}
    if chunks >= after.chunk then
      after = {admitted = total, chunk = chunks}
    end
    after = {admitted = after.admitted, chunk = after.chunk, settled = settled}
  end
  change_load(id, before, after)
end
return tonumber(redis.call("HGET", conf, "waiting") or 0)
