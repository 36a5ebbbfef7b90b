-- complete_and_acquire: complete and acquire of the permit's next slice in one call, where one server has all keys.
-- It goes on only if its token, once dispatched, would be the next one popped: no other waits in its lane or a more
-- urgent one, or the next is of the same request, whose tokens are interchangeable. Idempotent by next_op.
-- Says: (completed acquired?)
--   completed = what complete says; acquired = if it goes on, what acquire says to the token, which is not among
--   the tokens then
-- @flags allow-oom
-- @include lib/core/request_keys.lua
local lane_key = KEYS[10]  -- {queue}:<priority>  list  tokens; the lane that the permit's token came from
local urgent = 11  -- KEYS[11...]  {queue}:<priority>  list  tokens; the more urgent lanes
local now = ARGV[1]  -- ms, "" = server time
local k = ARGV[2]  -- permit
local fence = ARGV[3]  -- drawn at acquire
local op = ARGV[4]  -- hex; of the acquire
local done = tonumber(ARGV[5])  -- how many results follow
local id = ARGV[6]  -- the request
local lane = ARGV[7]  -- the number of the lane
local next_op = ARGV[8]  -- hex; 128 random bits of this call
local worker = ARGV[9]  -- host:port
local started = ARGV[10]  -- ms; differs after a restart of the worker
local count = tonumber(ARGV[11])  -- the most sub-requests of the next slice, 1..1000
local verdicts = 12  -- ARGV[12...]  as in complete
-- @include lib/core/now_ms.lua
-- @include lib/lease/complete.lua
-- @include lib/lease/acquire.lua
-- @include lib/permits/lane_head.lua

local work, refused = read_work(ARGV, verdicts, done)
refused = refused or acquire_error(count)
if refused then
  return refused
end
local state, over = load_unfinished()
if over then
  return {over}
end
now = now_ms(now)
local permit = read_permit(k)
local claim = {k = k, op = next_op, worker = worker, started = started, count = count, shared = ""}
if permit.op == next_op then
  claim.g = permit.g
  return {{"already", {}}, acquire(state, now, claim)}
end
local is_ours, other = false, nil  -- read before anything is written, because a lane may be damaged
if #KEYS < urgent or redis.call("EXISTS", unpack(KEYS, urgent)) == 0 then
  is_ours, other = is_next(id, lane_key)
end
local completed = complete(state, now, permit, {k = k, fence = fence, op = op, keep = "u"}, work)
local tokens = completed[1] == "ok" and completed[3] or {}
local own, g = string.match(tokens[2] or "", "^(%d+)%.(%d+)$")
if not is_ours or own ~= k or tokens[1] ~= lane or tokens[3] ~= 0 then
  return {completed}
end
if other then
  rotate_own_token(other, now, lane_key)
end
completed[3] = {}
for i = 4, #tokens do  -- thousands of retries may be due
  completed[3][i - 3] = tokens[i]
end
claim.g = g
return {completed, acquire(state, now, claim)}
