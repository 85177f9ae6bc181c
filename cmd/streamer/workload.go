package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
)

// demoTables is the schema of the shop, and what it begins with.
const demoTables = `
create table customer (id int primary key, name text not null, email text not null);
create table product (id int primary key, name text not null, price numeric(8,2) not null, stock int not null);
create table purchase (
    id bigint generated always as identity primary key,
    customer_id int not null references customer,
    state text not null default 'open',
    placed_at timestamptz not null default now()
);
create table purchase_item (
    purchase_id bigint references purchase on delete cascade,
    product_id int references product,
    quantity int not null,
    primary key (purchase_id, product_id)
);
insert into customer select n, 'Customer ' || n, 'customer' || n || '@example.com' from generate_series(1, 20) as n;
insert into product select n, 'Product ' || n, n * 1.25, 100 from generate_series(1, 10) as n;
`

const (
	workloadEvery = 300 * time.Millisecond
	keptPurchases = 50 // older ones are deleted, so that the shop does not grow
)

// runWorkload changes the shop a few times a second until ctx ends.
func runWorkload(ctx context.Context, url string) (err error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("connect to the shop: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		err = errors.Join(err, conn.Close(ctx))
	}()
	ticker := time.NewTicker(workloadEvery)
	defer ticker.Stop()
	for {
		if err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return doBusiness(ctx, tx) }); err != nil {
			return fmt.Errorf("change the shop: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// doBusiness is one transaction of the shop.
func doBusiness(ctx context.Context, tx pgx.Tx) error {
	exec := func(query string, args ...any) error {
		_, err := tx.Exec(ctx, query, args...)
		return err
	}
	switch rand.N(6) {
	case 0:
		return exec(`update product set price = round((price * (0.9 + random() * 0.2))::numeric, 2) where id = $1`, 1+rand.N(10))
	case 1:
		return exec(`update purchase set state = 'sent' where id in (select id from purchase where state = 'open' order by id limit 2)`)
	case 2:
		return exec(`delete from purchase where id < (select max(id) from purchase) - $1::int`, keptPurchases)
	case 3:
		return exec(`update customer set email = name || '+' || floor(random() * 1000) || '@example.com' where id = $1`, 1+rand.N(20))
	default:
		return errors.Join(
			exec(`with placed as (insert into purchase (customer_id) values ($1) returning id)
				insert into purchase_item select placed.id, picked.id, 1 + floor(random() * 5)::int
				from placed, (select id from product order by random() limit $2) as picked`, 1+rand.N(20), 1+rand.N(3)),
			exec(`update product set stock = case when stock < 10 then 100 else stock - 1 end
				where id in (select product_id from purchase_item where purchase_id = (select max(id) from purchase))`),
		)
	}
}
