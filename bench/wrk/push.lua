-- Pushes: wrk … -s push.lua URL -- BATCH PARTITIONS IDS. Each request pushes to the next partition; IDS 1: with transaction ids.
local threads = 0
function setup(thread)
   threads = threads + 1
   thread:set("thread_id", threads)
end

function init(args)
   batch, partitions, ids = tonumber(args[1]), tonumber(args[2]), args[3] == "1"
   count = 0
   local random = io.open("/dev/urandom", "rb")
   run = random:read(8):gsub(".", function(c) return string.format("%02x", c:byte()) end)
   random:close()
   wrk.method = "POST"
   wrk.headers["Content-Type"] = "application/json"
end

function request()
   count = count + 1
   local start = string.format('{"queue":"http","partition":"p%d","payload":{"id":1,"customer":"%s","total":99.5,"paid":false}',
                               count % partitions, string.rep("c", 150))
   local items = {}
   for i = 1, batch do
      items[i] = ids and string.format('%s,"transactionId":"%s-%d-%08d-%03d"}', start, run, thread_id, count, i) or start .. "}"
   end
   return wrk.format(nil, "/api/v1/push", nil, '{"items":[' .. table.concat(items, ",") .. "]}")
end

function response(status)
   if status ~= 201 then io.stderr:write("status ", status, "\n") end
end
