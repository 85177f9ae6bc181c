// Looks into the replica that a view-syncer of Zero keeps, also while it is written.
//
// usage: node replica.mjs state FILE         the watermark that it has come to
//        node replica.mjs rows FILE TABLE    its rows, one JSON array a line, in the order of the first column
//        node replica.mjs copy FILE TO       a copy as of now, for another view-syncer
import {createRequire} from 'node:module';

const require = createRequire(`${process.env.ZERO_DIR}/node_modules/`);
const SQLite = require('@rocicorp/zero-sqlite3');

const [command, file, argument] = process.argv.slice(2);
const replica = new SQLite(file, {readonly: command !== 'copy', fileMustExist: true});

switch (command) {
  case 'state':
    console.log(replica.prepare('SELECT stateVersion FROM "_zero.replicationState"').pluck().get());
    break;
  case 'rows': {
    // Columns of Zero's own begin with _0_.
    const columns = replica.prepare('SELECT name FROM pragma_table_info(?) ORDER BY cid').pluck().all(argument)
      .filter(name => !name.startsWith('_0_')).map(name => `"${name}"`);
    const rows = replica.prepare(`SELECT ${columns} FROM "${argument}" ORDER BY 1`).raw().safeIntegers();
    for (const row of rows.iterate()) {
      console.log(JSON.stringify(row.map(value => (value === null ? null : String(value)))));
    }
    break;
  }
  case 'copy':
    replica.prepare('VACUUM INTO ?').run(argument);
    break;
  default:
    console.error(`replica.mjs: no command ${command}`);
    process.exitCode = 2;
}
