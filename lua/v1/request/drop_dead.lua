-- drop_dead: forgets dead sub-requests with their bodies, and the texts of their errors; counts and results stay. The caller
-- names no more than it would read: see DEAD_BYTES.
-- Says: = dropped
-- @flags allow-oom
-- @include lib/request_keys.lua
local ids = 1  -- ARGV[1...]  dead entries, at most 1,000
-- @include lib/dead_letters.lua

local refused = ids_error(ARGV, ids)
if refused then
  return refused
end
local dropped = 0
for i = ids, #ARGV do
  local entry = redis.call("XRANGE", dead, ARGV[i], ARGV[i])[1]
  dropped = dropped + redis.call("XDEL", dead, ARGV[i])
  if entry then
    forget_error(fields_of(entry).error)
  end
end
return dropped
