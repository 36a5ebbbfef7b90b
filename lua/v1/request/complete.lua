-- complete: settles sub-requests of a lease. Counts, results and dead letters follow only what XACK acknowledged (or
-- the whole of a small request). With `keep` the lease goes on. Without it the permit is returned, and what the lease
-- still owes goes to `retry`, due now and uncharged: each to be delivered alone, or all together.
-- Says: ok left tokens | already tokens | lost | ended summary late? | gone
--   late = 1: the request had ended before, so this call has settled nothing
-- @flags allow-oom
-- @include lib/request_keys.lua
local now = ARGV[1]  -- ms, "" = server time
local k = ARGV[2]  -- permit
local fence = ARGV[3]  -- drawn at acquire
local op = ARGV[4]  -- hex; of the acquire
local keep = ARGV[5]  -- "1" = a partial completion, "u" = what is left over was never begun, "0" = it may have been
local done = tonumber(ARGV[6])  -- how many results follow
local verdicts = 7  -- ARGV[7...]  done ids, then done (head, body) pairs, then (id, verdict, delay ms, head, error) each
-- @include lib/core.lua
-- @include lib/state.lua
-- @include lib/permits.lua
-- @include lib/lease.lua

local work, refused = read_work(ARGV, verdicts, done, #ARGV)
if refused then
  return refused
end
local state, over = load_unfinished()
if over then
  if over[1] == "ended" then
    over[3] = 1
  end
  return over
end
return complete(state, now_ms(now), read_permit(k), {k = k, fence = fence, op = op, keep = keep}, work)
