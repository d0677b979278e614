# Runs once in the image's root file system.
chmod +x /entrypoint.sh
rm -rf /var/lib/mysql /var/cache/apt/archives/*.deb /var/lib/apt/lists/*
install -d -o mysql -g mysql /var/lib/mysql /run/mysqld
