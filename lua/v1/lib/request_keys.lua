local stream = KEYS[1]  -- sub:{id}  stream and group  waiting and leased sub-requests
local counter = KEYS[2]  -- counter:{id}  string  not yet done or dead, +1 while open
local request = KEYS[3]  -- req:{id}  hash  state, policy and counts; the tombstone after the end
local permits = KEYS[4]  -- tok:{id}  hash  permit -> queued, held or parked; last<k> -> its last fence
local leases = KEYS[5]  -- lease:{id}  zset  held permit -> deadline, ms
local retries = KEYS[6]  -- retry:{id}  zset  entry owned by consumer "-" -> due, ms
local results = KEYS[7]  -- out:{id}  stream  results in completion order
local dead = KEYS[8]  -- dead:{id}  stream  dead sub-requests with their reason
local few = KEYS[9]  -- few:{id}  string  the sub-requests of a small request, instead of stream and counter
local errors = KEYS[10]  -- error:{id}  hash  the texts of errors, each once; dead and out name them
local turns, tenants  -- of the queue, where one server has all keys: see lib/limit_keys.lua
